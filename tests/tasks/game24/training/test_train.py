"""Training is seeded, writes a ``from_pretrained`` folder, and has the targets of the recipe."""

import json
import math

import pytest
import torch
import typer
from safetensors.torch import load_file

from rksc_tot.engine import load_engine
from rksc_tot.tasks.game24.training import train
from rksc_tot.tasks.game24.training.batches import WORD, Batches
from rksc_tot.tasks.game24.training.documents import held_out

SMALL = train.Recipe(hidden=32, heads=2, kv_heads=1, head_size=16, inner=32, documents=24)
GATHER = SMALL.gathering()


def run(out, seed, **options):
    given = {"steps": 2, "minutes": math.inf, "documents": 12, "workers": 0, **options}
    train.main("game24", out=out, seed=seed, exclude=None, rows="1-2", device="cpu", threads=1, **given)
    return out


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return [run(tmp_path_factory.mktemp(name), seed) for name, seed in (("a", 0), ("b", 0), ("c", 1))]


@pytest.fixture(scope="module")
def batch():
    return next(iter(Batches(24, held_out(), seed=0)))


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
    assert sets["roots"] == [" ".join(map(str, p)) for p in held_out().root_puzzles]


def test_the_first_stage_ends_with_its_minutes(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(train, "GATHERING_STEPS", 1)
    run(tmp_path, 0, steps=1000, minutes=1e-9)
    assert json.loads(capsys.readouterr().out.splitlines()[0])["step"] == 1
    assert weights(tmp_path)


def test_another_name_is_refused(tmp_path):
    with pytest.raises(typer.BadParameter, match="'chess' is unknown"):
        train.main("chess", out=tmp_path)


def test_the_rate_warms_up_stays_and_falls():
    recipe = train.Recipe()
    rates = [train.rate_at(step / 1000, step, recipe) for step in range(1000)]
    assert rates[0] < rates[50] < rates[recipe.warmup_steps] == max(rates) == rates[399] > rates[401]
    assert rates[-1] < 0.05 * max(rates)


def test_the_rate_falls_in_a_run_shorter_than_the_warm_up():
    assert train.rate_at(0.9, 50, train.Recipe()) < train.rate_at(0.3, 50, train.Recipe())


def test_targets_are_at_their_positions(batch):
    ids = batch.ids.flatten()
    assert torch.equal(ids[batch.text[:, 0] + 1], batch.text[:, 1])
    tries = ids[batch.tries[:, 0]].reshape(-1, 12)
    assert {tuple(row) for row in tries.tolist()} == {tuple(range(WORD[" 1+2"], WORD[" 1+2"] + 12))}
    assert set(ids[batch.label[:, 0]].tolist()) == {WORD[" so"]}
    assert set(batch.tries[:, 2].tolist()) == {WORD[" yes"], WORD[" no"]}


def test_only_questions_about_three_numbers_are_swapped_and_have_random_early_labels(batch):
    places = set(batch.label[:, 0].tolist())
    one_and_three = batch.tries.reshape(-1, 12, 3)[:, 5, 1] != WORD[" no"]  # 1-3 can be made of any three numbers
    hard = set(batch.label[one_and_three, 0].tolist())
    assert set(batch.swap[:, 0].tolist()) == set(batch.swap[:, 1].tolist()) == hard != places
    assert not (batch.swap[:, 0] == batch.swap[:, 1]).any()
    assert torch.equal(batch.label[~one_and_three, 1], batch.label[~one_and_three, 2])
    assert not torch.equal(batch.label[one_and_three, 1], batch.label[one_and_three, 2])


@pytest.mark.parametrize(("recipe", "verdicts", "early"), [(SMALL, range(2, 9), 1), (GATHER, range(4, 9), 4)])
def test_each_lens_has_its_targets(batch, recipe, verdicts, early):
    model = train.build_model(recipe, 0)
    readings = train.read(model, batch, recipe)
    assert {name for name in readings if name.startswith("result")} == {"result@2", "result@3"}
    assert {name for name in readings if name.startswith("verdict")} == {f"verdict@{n}" for n in verdicts}
    for layer in range(1, 9):
        assert torch.equal(readings[f"label@{layer}"].targets, batch.label[:, 1 if layer < early else 2])


def test_the_swap_exchanges_hidden_states_at_one_layer_only(batch):
    model, entered = train.build_model(SMALL, 0).eval(), {}
    for layer in (3, 4):
        decoder_layer = model.model.layers[layer - 1]
        decoder_layer.register_forward_pre_hook(
            lambda _, given, layer=layer: entered.setdefault(layer, []).append(given[0])
        )
    with torch.no_grad():
        train.read(model, batch, GATHER)
        train.read(model, batch, SMALL)
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
    model = train.build_model(SMALL, 0)
    sum(reading.loss() for reading in train.read(model, batch, SMALL).values()).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())
