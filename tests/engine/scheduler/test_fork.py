"""An engine in a forked process."""

import os
import subprocess
import sys

import pytest

from rksc_tot.engine import TransformersEngine
from rksc_tot.engine.transformers_engine.kv_engine import KVEngine

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")

CALLS = {
    "open": "engine.open('solve', account)",
    "append": "engine.append(root, [5])",
    "extend": "engine.extend(root, '1')",
    "generate": "asyncio.run(engine.generate([GenerateRequest(root, (1,), Sampling(), 2)], account))",
    "label": "asyncio.run(engine.label([LabelRequest(root, 'x', ('1', '2'))], account))",
    "similarity": "engine.similarity(root, [root], 0.5)",
    "hidden_state": "engine.hidden_state(root, 1)",
    "open_variant": "asyncio.run(engine.open_variant('solve', root, PromptReuse(threshold=0), account))",
    "divergence": "asyncio.run(engine.divergence([(root, root)], account))",
    "rehydrate": "asyncio.run(engine.rehydrate([root], account))",
    "against_full": "asyncio.run(engine.against_full([root], account))",
    "rate": "engine.rate(root, 1.0, 1)",
    "clear": "engine.clear()",
    "check_integrity": "engine.check_integrity()",
}
PARENT = """
import asyncio, os, signal
import torch
from rksc_tot.core.errors import EngineError
from rksc_tot.engine.base import Account, GenerateRequest, LabelRequest, Sampling
from rksc_tot.policies.asks import PromptReuse
from rksc_tot.tasks.game24.tokenizer import build_tokenizer
from rksc_tot.engine import TransformersEngine
from tests.engine.conftest import llama

torch.set_num_threads(2)
tokenizer = build_tokenizer()
made = lambda: TransformersEngine(llama(len(tokenizer)), tokenizer)
engine, account = made(), Account()

def write(engine):
    root = engine.open("solve 4 5 6 10", Account())
    [[done]] = asyncio.run(engine.generate([GenerateRequest(root, (1,), Sampling(temperature=0), 4)], Account()))
    return done.tokens

def fork(child):
    process = os.fork()
    if not process:
        signal.alarm(120)
        child()
        os._exit(0)
    assert os.waitpid(process, 0)[1] == 0
"""


PROGRAM = f"""
def computes():
    with made() as new:
        assert write(new) == write(new)

def is_refused():
    for name, call in {CALLS!r}.items():
        try:
            eval(call)
        except EngineError as error:
            print(name, error, sep=": ", flush=True)
    with engine:
        engine.release(root)
    engine.close()

fork(computes)  # the parent's OpenMP helpers wait awake: only its main thread has computed so far
root, alone = engine.open("solve 4 5 6 10", account), write(engine)
fork(computes)
fork(is_refused)
engine.check_integrity()
assert write(engine) == alone
engine.release(root)
engine.close()
"""


def test_a_forked_process_refuses_its_parents_engine_and_can_make_a_new_one():
    done = subprocess.run(
        [sys.executable, "-c", PARENT + PROGRAM], capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    refusal = "the engine was made in another process, from which this one was forked - make an engine in this process"
    assert done.stdout.splitlines() == [f"{name}: {refusal}" for name in CALLS]


def test_every_public_call_is_tried_in_a_forked_process():
    everything = vars(KVEngine) | vars(TransformersEngine)
    calls = {name for name, call in everything.items() if callable(call) and name[0] != "_"}
    assert calls == {*CALLS, "release", "close", "thinking_format"}  # the last asks the tokenizer only
