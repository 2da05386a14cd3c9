import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from benchmarks.common.reward_models import tokenizer
from rksc_tot.core.errors import ConfigError, ModelLoadError
from rksc_tot.engine.reward.load import load_reward_engine


@pytest.fixture
def damaged(folders, tmp_path):
    """Copies a reward model with changed weights or another config."""

    def copy(kind, weights=lambda w: w, **config):
        folder = tmp_path / kind
        shutil.copytree(folders[kind], folder)
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | config))
        save_file(weights(load_file(folder / "model.safetensors")), folder / "model.safetensors", {"format": "pt"})
        return folder

    return copy


def test_the_kind_is_found_from_config_and_weights(engine, kind):
    assert engine.layout.kind == kind


@pytest.mark.parametrize(
    ("kind", "prefix"),
    [("token_classes", "score"), ("value_head", "v_head.summary"), ("step_marker", "score.2"), ("outcome", "score")],
)
def test_a_missing_head_is_refused(damaged, kind, prefix):
    folder = damaged(kind, lambda weights: {n: w for n, w in weights.items() if not n.startswith(prefix)})
    with pytest.raises(ModelLoadError, match="the head is missing: no weights are named"):
        load_reward_engine(folder, kind=kind)


@pytest.mark.parametrize("kind", ["token_classes", "outcome"])
def test_a_head_that_returns_nan_is_refused(damaged, kind):
    def spoil(weights):
        return weights | {"score.weight": torch.full_like(weights["score.weight"], float("nan"))}

    with pytest.raises(
        ModelLoadError, match=r"its head returns NaN .*: NaN or infinite numbers are in the weights head.weight - "
    ):
        load_reward_engine(damaged(kind, spoil))


def test_a_head_of_another_width_is_refused(damaged):
    with pytest.raises(ModelLoadError, match=r"has the shape \(2, 47\); it must have 1 or 2 rows of 48"):
        load_reward_engine(damaged("token_classes", lambda w: w | {"score.weight": torch.zeros(2, 47)}))


def test_a_head_of_many_classes_is_refused(damaged):
    with pytest.raises(ModelLoadError, match=r"has the shape \(5, 48\)"):
        load_reward_engine(damaged("token_classes", lambda w: w | {"score.weight": torch.zeros(5, 48)}))


@pytest.mark.parametrize("kind", ["step_marker", "label_pair"])
def test_a_tokenizer_without_the_marker_is_refused(damaged, kind):
    folder = damaged(kind)
    other = tokenizer(chat=kind == "step_marker", markers=False)
    shutil.rmtree(folder)
    folder = damaged(kind)
    other.save_pretrained(folder)
    with pytest.raises(ModelLoadError, match="so it has another vocabulary"):
        load_reward_engine(folder)


def test_a_tokenizer_of_a_larger_vocabulary_is_refused(damaged):
    def small(weights):
        name = "model.embed_tokens.weight"
        return weights | {name: weights[name][:200].clone()}

    with pytest.raises(ModelLoadError, match="the tokenizer has 261 tokens, the model 200"):
        load_reward_engine(damaged("token_classes", small, vocab_size=200))


def test_missing_backbone_weights_are_refused(damaged):
    with pytest.raises(ModelLoadError, match="weights are missing, such as"):
        load_reward_engine(damaged("token_classes", lambda w: {n: t for n, t in w.items() if "layers.1" not in n}))


def test_a_folder_without_safetensors_is_refused(damaged):
    folder = damaged("token_classes")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelLoadError, match="there are no safetensors weights"):
        load_reward_engine(folder)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("model.safetensors", b"junk"),
        ("model.safetensors.index.json", b"{"),
        ("model.safetensors.index.json", b"{}"),
        ("model.safetensors.index.json", b'{"weight_map": ["score.weight"]}'),
        ("model.safetensors.index.json", b'{"weight_map": {"v_head.weight": "gone.safetensors"}}'),
    ],
)
def test_weights_that_cannot_be_read_are_refused(damaged, file, content):
    folder = damaged("token_classes")
    (folder / "model.safetensors").unlink()
    (folder / file).write_bytes(content)
    with pytest.raises(ModelLoadError, match="no reward model in"):
        load_reward_engine(folder)


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(ModelLoadError, match=r"there is no config\.json"):
        load_reward_engine(tmp_path)


def test_an_unknown_architecture_is_refused_with_the_kinds(damaged):
    folder = damaged("token_classes", architectures=["Qwen2ForQuestionAnswering"])
    with pytest.raises(ModelLoadError, match="Qwen2ForQuestionAnswering is no kind that is known - name the kind"):
        load_reward_engine(folder)


def test_an_unknown_kind_is_refused(folders):
    with pytest.raises(ConfigError, match="there is no kind of reward model 'prm'"):
        load_reward_engine(folders["outcome"], kind="prm")


def test_compression_is_refused(folders):
    with pytest.raises(ConfigError, match="the KV of a reward model is not compressed"):
        load_reward_engine(folders["outcome"], compress="streaming")
