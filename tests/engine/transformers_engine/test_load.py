"""Loading by name: models that load, and messages for those that do not."""

import json

import pytest
from transformers import BertConfig, BertModel

from rksc_tot.core.errors import ConfigError, MissingExtra, ModelLoadError
from rksc_tot.engine import load_engine
from rksc_tot.engine.transformers_engine import load
from tests.engine.conftest import SHAPE, byte_tokenizer, llama


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    tokenizer = byte_tokenizer()
    llama(len(tokenizer)).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory, folder):
    """The folder's model as a GGUF file: the q and k rows are permuted, as llama.cpp keeps them."""
    import gguf
    from safetensors.torch import load_file

    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    heads, kv_heads, hidden = SHAPE["num_attention_heads"], SHAPE["num_key_value_heads"], SHAPE["hidden_size"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(SHAPE["max_position_embeddings"])
    writer.add_embedding_length(hidden)
    writer.add_block_count(SHAPE["num_hidden_layers"])
    writer.add_feed_forward_length(SHAPE["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10_000.0)
    saved = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    tokens = sorted(saved["vocab"], key=saved["vocab"].get)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if t in ("<s>", "<pad>", "</s>") else 1 for t in tokens])
    writer.add_token_merges([" ".join(pair) for pair in saved["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(2)
    names = {
        "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
        "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    }  # fmt: skip
    for name, weight in load_file(folder / "model.safetensors").items():
        stem = name.removesuffix(".weight")
        prefix = ""
        if stem.startswith("model.layers."):
            _, _, layer, stem = stem.split(".", 3)
            prefix = f"blk.{layer}."
        for part, count in (("q_proj", heads), ("k_proj", kv_heads)):
            if stem.endswith(part):
                weight = weight.reshape(count, 2, -1, hidden).transpose(1, 2).reshape(weight.shape)
        writer.add_tensor(f"{prefix}{names[stem]}.weight", weight.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_folder_loads(folder):
    with load_engine(folder) as engine:
        assert engine.name == str(folder)
        assert engine.numerics["dtype"] == "float32"


def test_bfloat16_is_loaded_and_reported(folder):
    with load_engine(folder, dtype="bfloat16") as engine:
        assert engine.numerics["dtype"] == "bfloat16"


def test_a_gguf_file_holds_the_same_model(folder, gguf_file, recwarn):
    text = "say yes\nno"
    with load_engine(folder) as one, load_engine(gguf_file) as two:
        ids = one.tokenizer.encode(text, add_special_tokens=False)
        assert two.tokenizer.encode(text, add_special_tokens=False) == ids
        assert float((one.forward.plain(ids) - two.forward.plain(ids)).abs().max()) < 1e-4


@pytest.mark.parametrize("absent", ["gguf", "accelerate"])
def test_gguf_without_the_extra_names_it(gguf_file, monkeypatch, absent):
    monkeypatch.setattr(load, "find_spec", lambda name: None if name == absent else object())
    with pytest.raises(MissingExtra, match=r"rksc_tot\[gguf\]"):
        load_engine(gguf_file)


def test_a_cached_hub_model_loads_by_its_id(folder, tmp_path, monkeypatch):
    from huggingface_hub import constants

    revision = "0123456789abcdef0123456789abcdef01234567"
    cache = tmp_path / "models--someone--tiny"
    snapshot = cache / "snapshots" / revision
    snapshot.parent.mkdir(parents=True)
    snapshot.symlink_to(folder, target_is_directory=True)
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text(revision, encoding="utf-8")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with load_engine("someone/tiny") as engine:
        assert engine.name == "someone/tiny"


def test_a_missing_model_is_refused_with_a_hint(tmp_path):
    for name in (tmp_path, tmp_path / "none", "./none", tmp_path / "none.gguf"):
        with pytest.raises(ModelLoadError, match="there is no"):
            load_engine(name)
    with pytest.raises(ModelLoadError, match="cannot load 'no/such'"):
        load_engine("no/such")


def test_a_folder_without_a_causal_lm_is_refused_in_a_sentence(tmp_path):
    BertModel(BertConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=30)).save_pretrained(
        tmp_path
    )
    byte_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(ModelLoadError, match="parts of a causal LM, such as cls"):
        load_engine(tmp_path)


def test_broken_weights_are_refused_in_a_sentence(folder, tmp_path):
    for part in folder.iterdir():
        (tmp_path / part.name).write_bytes(part.read_bytes())
    (tmp_path / "model.safetensors").write_bytes(b"not safetensors")
    with pytest.raises(ModelLoadError, match="as a causal LM"):
        load_engine(tmp_path)


def test_a_broken_gguf_file_is_refused_in_a_sentence(tmp_path):
    file = tmp_path / "bad.gguf"
    file.write_bytes(b"nothing of the kind")
    with pytest.raises(ModelLoadError, match="GGUF"):
        load_engine(file)


def test_pickled_weights_are_refused(folder, tmp_path):
    import torch

    for part in folder.iterdir():
        if part.name != "model.safetensors":
            (tmp_path / part.name).write_bytes(part.read_bytes())
    torch.save({}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelLoadError, match="as a causal LM"):
        load_engine(tmp_path)


@pytest.mark.parametrize(("option", "value"), [("dtype", "int3"), ("device", "abacus"), ("device", "cuda:99")])
def test_an_unknown_dtype_or_device_is_named(folder, option, value):
    with pytest.raises(ConfigError, match=value):
        load_engine(folder, **{option: value})
