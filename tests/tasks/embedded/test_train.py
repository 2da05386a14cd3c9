"""Training is seeded, writes a ``from_pretrained`` folder, and has the targets of the recipe."""

import json
import math
from dataclasses import replace

import pytest
import torch
import typer
from safetensors.torch import load_file

from rksc_tot.engine import load_engine
from rksc_tot.tasks.embedded import train
from rksc_tot.tasks.embedded.batches import Batches
from rksc_tot.tasks.embedded.families.game24.family import FIRST, SECOND
from rksc_tot.tasks.embedded.family import FAMILIES, LlamaShape, load_family
from rksc_tot.tasks.embedded.model import build_model

FAMILY = replace(
    load_family("game24"), shape=LlamaShape(hidden=32, layers=8, heads=2, kv_heads=1, head_size=16, inner=32)
)
WORD = {word: i for i, word in enumerate(FAMILY.vocabulary)}
KINDS = ("result", "verdict", "early", "label")


def run(out, seed, **options):
    given = {"what": "game24", "steps": 2, "minutes": math.inf, "documents": 6, "workers": 0, **options}
    train.main(out=out, seed=seed, exclude=None, rows="1-2", device="cpu", threads=1, **given)
    return out


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return [run(tmp_path_factory.mktemp(name), seed) for name, seed in (("a", 0), ("b", 0), ("c", 1))]


@pytest.fixture(scope="module")
def batch():
    return next(iter(Batches(FAMILY, KINDS, 24, seed=0)))


def weights(folder):
    return load_file(folder / "model.safetensors")


def test_the_same_seed_gives_the_same_weights(folders):
    a, b, c = map(weights, folders)
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert not all(torch.equal(a[name], c[name]) for name in a)


def test_two_workers_give_the_same_weights_twice(tmp_path):
    a, b = (weights(run(tmp_path / name, 0, workers=2)) for name in "ab")
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_the_folder_loads_with_from_pretrained(folders):
    with load_engine(folders[0]) as engine:
        assert engine.capabilities.route == "fast"
    assert {t.dtype for t in weights(folders[0]).values()} == {torch.float16}


def test_the_held_out_sets_are_written_with_the_weights(folders):
    sets = json.loads((folders[0] / "held_out.json").read_text(encoding="utf-8"))
    assert sets == FAMILY.held_out


def test_the_first_stage_ends_with_its_minutes(tmp_path, capsys, monkeypatch):
    family = replace(FAMILY, stages=(FIRST, replace(SECOND, steps=1)))
    monkeypatch.setattr(train, "load_family", lambda name, excluded: family)
    run(tmp_path, 0, steps=1000, minutes=1e-9)
    assert json.loads(capsys.readouterr().out.splitlines()[0])["step"] == 1
    assert weights(tmp_path)


def test_another_name_is_refused(tmp_path):
    with pytest.raises(typer.BadParameter, match="no family 'chess'"):
        train.main("chess", out=tmp_path)


def test_the_rate_warms_up_stays_and_falls():
    stage = FIRST
    rates = [train.rate_at(step / 1000, step, stage) for step in range(1000)]
    assert rates[0] < rates[50] < rates[stage.warmup_steps] == max(rates) == rates[399] > rates[401]
    assert rates[-1] < 0.05 * max(rates)


def test_the_rate_falls_in_a_run_shorter_than_the_warm_up():
    assert train.rate_at(0.9, 50, FIRST) < train.rate_at(0.3, 50, FIRST)


def test_targets_are_at_their_positions(batch):
    ids = batch.ids.flatten()
    text, label = batch.targets["text"], batch.targets["label"]
    assert torch.equal(ids[text[:, 0] + 1], text[:, 1])
    for kind in ("result", "verdict"):
        tries = ids[batch.targets[kind][:, 0]].reshape(-1, 12)
        assert {tuple(row) for row in tries.tolist()} == {tuple(range(WORD[" 1+2"], WORD[" 1+2"] + 12))}
    assert set(ids[label[:, 0]].tolist()) == {WORD[" so"]}
    assert set(batch.targets["verdict"][:, 1].tolist()) == {WORD[" yes"], WORD[" no"]}


def test_only_questions_about_three_numbers_are_swapped_and_have_random_early_labels(batch):
    label, early = batch.targets["label"], batch.targets["early"]
    places = set(label[:, 0].tolist())
    three = batch.targets["result"].reshape(-1, 12, 2)[:, 5, 1] != WORD[" no"]  # 1-3 can be made of any three numbers
    hard = set(label[three, 0].tolist())
    assert set(batch.swap[:, 0].tolist()) == set(batch.swap[:, 1].tolist()) == hard != places
    assert not (batch.swap[:, 0] == batch.swap[:, 1]).any()
    assert torch.equal(label[~three], early[~three])
    assert not torch.equal(label[three], early[three])


def test_a_question_adds_no_next_token_to_learn(batch):
    ids, question = batch.ids.flatten(), WORD["try"]
    assert question in ids
    assert question not in ids[batch.targets["text"][:, 0]]


@pytest.mark.parametrize(("stage", "verdicts", "early"), [(FIRST, range(2, 9), 0), (SECOND, range(4, 9), 3)])
def test_each_lens_has_its_targets(batch, stage, verdicts, early):
    predictions = train.read(build_model(FAMILY, 0), batch, stage)
    names = {
        "text": {"text@8"},
        "result": {"result@2", "result@3"},
        "verdict": {f"verdict@{n}" for n in verdicts},
        "early": {f"early@{n}" for n in range(1, early + 1)},
        "label": {f"label@{n}" for n in range(early + 1, 9)},
    }
    for kind, expected in names.items():
        assert {name for name in predictions if name.startswith(kind)} == expected
        for name in expected:
            assert torch.equal(predictions[name].targets, batch.targets[kind][:, 1])


def test_the_swap_exchanges_hidden_states_at_one_layer_only(batch):
    model, entered = build_model(FAMILY, 0).eval(), {}
    for layer in (3, 4):
        decoder_layer = model.model.layers[layer - 1]
        decoder_layer.register_forward_pre_hook(
            lambda _, given, layer=layer: entered.setdefault(layer, []).append(given[0])
        )
    with torch.no_grad():
        train.read(model, batch, SECOND)
        train.read(model, batch, FIRST)
    before, plain = (state.flatten(0, 1) for state in entered[3])
    assert torch.equal(before, plain)
    swapped, plain = (state.flatten(0, 1) for state in entered[4])
    to, source = batch.swap.T
    assert torch.equal(swapped[to], plain[source])
    assert not torch.equal(swapped[to], plain[to])
    others = torch.ones(len(plain), dtype=torch.bool)
    others[to] = False
    assert torch.equal(swapped[others], plain[others])


def test_the_loss_reaches_every_weight(batch):
    model = build_model(FAMILY, 0)
    sum(prediction.loss() for prediction in train.read(model, batch, FIRST).values()).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


@pytest.mark.parametrize("name", sorted(set(FAMILIES) - {"game24"}))
def test_every_other_family_trains_and_its_folder_loads(name, tmp_path):
    with load_engine(run(tmp_path, 0, what=name)) as engine:
        assert engine.capabilities.route == "fast"
