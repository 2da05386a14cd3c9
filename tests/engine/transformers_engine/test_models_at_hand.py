"""Models as people have them: loaded objects, adapters, quantised checkpoints, devices and number formats by themselves."""

import asyncio

import pytest
import torch
from torch import nn

from rksc_tot.core.errors import ConfigError, MissingExtra, ModelLoadError, UnsupportedModel
from rksc_tot.engine import engine_from, load_engine
from rksc_tot.engine.base import Account
from rksc_tot.engine.transformers_engine import load
from tests.engine.conftest import byte_tokenizer, llama
from tests.engine.requests import ask, texts

TOKENIZER = byte_tokenizer()


def thoughts(engine):
    async def write():
        account = Account()
        root = engine.open("say", account)
        [reply] = await engine.generate([ask(root, max_tokens=6)], account)
        found = texts(reply)
        for handle in (root, *(completion.handle for completion in reply)):
            engine.release(handle)
        return found

    return asyncio.run(write())


def adapted():
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(1)
    config = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
    return get_peft_model(llama(len(TOKENIZER)), config).eval()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("base")
    llama(len(TOKENIZER)).save_pretrained(path)
    TOKENIZER.save_pretrained(path)
    return path


def test_a_loaded_model_gets_an_engine_and_does_not_change(folder):
    model = llama(len(TOKENIZER))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with engine_from(model, TOKENIZER, name="mine", kv_budget="1MiB") as one, load_engine(folder) as other:
        assert one.name == "mine"
        assert one.usage.kv_budget <= 1 << 20
        assert thoughts(one) == thoughts(other)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_an_adapter_counts_attached_merged_and_as_a_folder(folder, tmp_path):
    model = adapted()
    model.base_model.model.config.name_or_path = model.peft_config["default"].base_model_name_or_path = str(folder)
    model.save_pretrained(tmp_path)
    with engine_from(model, TOKENIZER) as attached:
        found, plain = thoughts(attached), attached.forward.plain([5, 6, 7])
    with load_engine(tmp_path) as loaded:
        assert thoughts(loaded) == found
        assert torch.allclose(loaded.forward.plain([5, 6, 7]), plain, atol=1e-4)
    with engine_from(model.merge_and_unload(), TOKENIZER) as merged:
        assert torch.allclose(merged.forward.plain([5, 6, 7]), plain, atol=1e-4)
    with load_engine(folder) as base:
        assert not torch.allclose(base.forward.plain([5, 6, 7]), plain, atol=1e-2)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_an_adapter_that_adds_virtual_tokens_is_refused():
    from peft import PromptTuningConfig, get_peft_model

    config = PromptTuningConfig(num_virtual_tokens=4, task_type="CAUSAL_LM")
    with pytest.raises(UnsupportedModel, match="PromptTuningConfig adds virtual tokens"):
        engine_from(get_peft_model(llama(len(TOKENIZER)), config).eval(), TOKENIZER)


def test_an_adapter_without_peft_names_the_extra(tmp_path, monkeypatch):
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "none"}', encoding="utf-8")
    monkeypatch.setattr(load, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"rksc_tot\[peft\]"):
        load_engine(tmp_path)


def test_objects_that_are_no_model_or_tokenizer_are_refused_in_a_sentence():
    model = llama(len(TOKENIZER))
    for wrong, says in (
        ((nn.Linear(2, 2), TOKENIZER), "Linear is not a causal LM"),
        ((model, None), "NoneType is not a tokenizer"),
        ((model.train(), TOKENIZER), "the model is in training mode - call model.eval"),
    ):
        with pytest.raises(ConfigError, match=says):
            engine_from(*wrong)


def test_weights_on_more_than_one_device_are_refused_with_the_reason():
    model = llama(len(TOKENIZER))
    model.model.layers[1] = model.model.layers[1].to("meta")
    with pytest.raises(UnsupportedModel, match="accelerate keeps part of this model's weights elsewhere"):
        engine_from(model, TOKENIZER)


def test_auto_takes_the_device_that_there_is_and_the_number_format_of_the_checkpoint(folder, tmp_path):
    wanted = "cuda:0" if torch.cuda.is_available() else "cpu"
    with load_engine(folder, device="auto", dtype="auto") as engine:
        assert engine.numerics["dtype"] == "float32"
        assert str(engine.forward.device) == wanted
    llama(len(TOKENIZER)).to(torch.bfloat16).save_pretrained(tmp_path)
    TOKENIZER.save_pretrained(tmp_path)
    with load_engine(tmp_path, dtype="auto") as engine:
        assert engine.numerics["dtype"] == "bfloat16"


def test_quantised_weights_are_proved_by_the_probe(folder, tmp_path, fresh_probe):
    torchao = pytest.importorskip("torchao.quantization")
    from transformers import AutoModelForCausalLM, TorchAoConfig

    config = TorchAoConfig(torchao.Int8WeightOnlyConfig())
    model = AutoModelForCausalLM.from_pretrained(folder, quantization_config=config, device_map="cpu")
    model.save_pretrained(tmp_path)
    TOKENIZER.save_pretrained(tmp_path)
    with engine_from(model.eval(), TOKENIZER) as one, load_engine(tmp_path) as other:
        assert one.capabilities.difference <= one.capabilities.tolerance
        assert thoughts(one) == thoughts(other)


def test_a_model_that_quantises_activations_by_the_batch_is_refused_with_advice(fresh_probe):
    """Stands for a quantised model whose rows depend on each other."""

    class ByBatch(nn.Linear):
        def forward(self, input):
            step = input.abs().max() / 15
            return super().forward((input / step).round() * step)

    model = llama(len(TOKENIZER))
    for layer in model.model.layers:
        layer.mlp.down_proj.__class__ = ByBatch
    model.hf_quantizer = "a quantiser"
    with pytest.raises(UnsupportedModel, match="use a checkpoint with quantised weights only"):
        engine_from(model, TOKENIZER, pack=False)


def test_a_quantised_checkpoint_that_cannot_be_loaded_is_refused_in_a_sentence(folder, tmp_path):
    import json

    for part in folder.iterdir():
        (tmp_path / part.name).write_bytes(part.read_bytes())
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4, "group_size": 32}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(ModelLoadError, match="as a causal LM") as error:
        load_engine(tmp_path)
    assert "\n" not in str(error.value)
