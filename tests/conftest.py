import gc
import logging
import os
import signal
import sys
from functools import cache

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # a test with two threads takes no core from another test

import pytest
from hypothesis import settings
from typer.main import get_command

if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):  # the shell ignores Ctrl-C for a run in the background; tests send it
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("steady", deadline=None, derandomize=True, max_examples=30)
settings.register_profile("many", deadline=None, derandomize=True, max_examples=500)  # make slow
settings.load_profile("steady")


def pytest_collection_finish():
    """Spare each test what takes long: garbage collections of the tests themselves, and handlers for each logger of torch.

    pytest adds and removes its handlers at each logger that does not propagate, and torch has dozens of them.
    """
    gc.collect()
    gc.freeze()
    for name, logger in logging.Logger.manager.loggerDict.items():
        if name.startswith("torch.") and isinstance(logger, logging.Logger):
            logger.propagate = True


@pytest.fixture(scope="session", autouse=True)
def probe_once():
    """Engines of one model share what its probe found (see tests/engine/known_probes.py)."""
    with pytest.MonkeyPatch.context() as patch:
        if "torch" in sys.modules:
            from rksc_tot.engine.transformers_engine import build
            from tests.engine.known_probes import known_probe

            patch.setattr(build, "probe", known_probe)
        yield


@pytest.fixture(scope="session", autouse=True)
def one_command_line():
    """Tests that call the command share its parser, which takes longer to build than most of them take to run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("typer.testing._get_command", cache(get_command))
        yield


@pytest.fixture
def fresh_probe(monkeypatch):
    """Engines probe their model, whatever is known of it."""
    from rksc_tot.engine.transformers_engine import build
    from tests.engine.known_probes import real_probe

    monkeypatch.setattr(build, "probe", real_probe)


@pytest.fixture(scope="session")
def accepted():
    """A calibration on which layer exit passed; it costs a second."""
    from rksc_tot import calibrate
    from tests.layered_mock import PROBLEMS, WALK, make_engine, make_task

    return calibrate(make_task(), PROBLEMS, engine=make_engine(), **WALK)
