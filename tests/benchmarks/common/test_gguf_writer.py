"""A GGUF file for llama.cpp holds the model's weights by llama.cpp's names with 8 bits, and gives equal probabilities."""

import json
import subprocess

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from benchmarks.common.gguf_writer import write_q8
from benchmarks.common.random_models import random_model
from benchmarks.peers.child import HOME, PeerAbsent
from benchmarks.peers.lineup import LLAMA_CPP
from benchmarks.peers.search import PeerProblem
from benchmarks.peers.transformers import Generate
from rksc_tot.core.errors import UnsupportedModel

gguf = pytest.importorskip("gguf")
READ = """
import json, sys
from benchmarks.peers.llama_cpp import LlamaCpp
from benchmarks.peers.search import Problem
file, path, new, question, labels = json.loads(sys.argv[1])
peer = LlamaCpp(file, 256, 1)
[branches] = peer.grow([path], 6, new)
families = [[path + branch for branch in branches]]
values = peer.value(families, Problem(path, question, tuple(labels)))
peer._draw = lambda logits: [9] * len(logits)
[branches] = peer.grow([path], 2, 1)
same = peer.value([[path + branch for branch in branches]], Problem(path, question, tuple(labels)))[0]
assert same[0] == same[1], same
print(json.dumps([families, values]))
"""


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=320, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=False, initializer_range=0.3, rope_theta=1000.0,
        bos_token_id=None, eos_token_id=None, max_position_embeddings=512,
    )  # fmt: skip
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def file(model, tmp_path_factory):
    found = tmp_path_factory.mktemp("gguf") / "model.gguf"
    write_q8(model, found)
    return found


def test_every_weight_is_there_within_the_precision_of_eight_bits(model, file):
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(file).tensors}
    assert sum(tensor.n_elements for tensor in tensors.values()) == sum(p.numel() for p in model.parameters())
    down = tensors["blk.1.ffn_down.weight"]
    assert down.tensor_type.name == "Q8_0"
    read = gguf.quants.dequantize(down.data, down.tensor_type)
    wanted = model.model.layers[1].mlp.down_proj.weight.detach().numpy()
    assert np.abs(read - wanted).max() <= np.abs(wanted).max() / 127
    assert not file.with_suffix(".part").exists()


def test_a_width_that_blocks_do_not_fit_is_refused(tmp_path):
    with pytest.raises(UnsupportedModel, match="do not fit a width of 48"):
        write_q8(random_model("tiny"), tmp_path / "model.gguf")


def test_llama_cpp_reads_the_same_probabilities_on_its_own_branches(model, file):
    try:
        python = LLAMA_CPP.ready(install=False)
    except PeerAbsent as absent:
        pytest.skip(str(absent))
    path, question, labels = [5, 9, 200, 31, 77, 120, 8, 64], [11, 12, 300], [[3, 17], [4]]
    asked = json.dumps([str(file), path, 6, question, labels])
    done = subprocess.run([python, "-c", READ, asked], cwd=HOME, capture_output=True, text=True, check=True)
    families, values = json.loads(done.stdout)
    problem = PeerProblem(path, question, (labels[0], labels[1]))
    expected = Generate(model).value(families, problem)
    assert {len(branch) for branch in families[0]} == {len(path) + 6}
    assert np.abs(np.array(values) - np.array(expected)).max() < 0.05
    assert np.ptp(expected) > 0.2
