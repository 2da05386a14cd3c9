"""Training is seeded, writes an ordinary folder, and its lenses learn what the recipe says."""

import json
import math

import pytest
import torch
import typer
from safetensors.torch import load_file

from rksc_tot.engine import load_engine
from rksc_tot.models import train
from rksc_tot.models.batches import WORD, Batches
from rksc_tot.models.game24_data import held_out

SMALL = train.Recipe(hidden=32, heads=2, kv_heads=1, head_size=16, inner=32, documents=24)


def run(out, seed, **options):
    given = {"steps": 2, "minutes": math.inf, "documents": 12, "rate": 2e-3, "go_on": None, "workers": 0, **options}
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


def test_the_folder_loads_like_any_other(folders):
    with load_engine(folders[0]) as engine:
        assert engine.capabilities.route == "fast"
    assert {t.dtype for t in weights(folders[0]).values()} == {torch.float16}


def test_what_was_held_out_is_written_beside_the_weights(folders):
    sets = json.loads((folders[0] / "held_out.json").read_text(encoding="utf-8"))
    assert sets["roots"] == [" ".join(map(str, p)) for p in held_out().root_puzzles]


def test_training_goes_on_from_a_folder(folders, tmp_path):
    before, after = weights(folders[0]), weights(run(tmp_path, 5, go_on=folders[0], rate=1e-9))
    assert all(torch.allclose(before[name], after[name], atol=1e-3) for name in before)


def test_training_ends_with_its_minutes(tmp_path, capsys):
    run(tmp_path, 0, steps=1000, minutes=1e-9)
    assert [json.loads(line)["step"] for line in capsys.readouterr().out.splitlines()] == [1]
    assert weights(tmp_path)


def test_another_name_is_refused(tmp_path):
    with pytest.raises(typer.BadParameter, match="'chess' is not a model"):
        train.main("chess", out=tmp_path)


def test_the_rate_warms_up_stays_and_falls():
    recipe = train.Recipe()
    rates = [train.rate_at(step / 1000, step, recipe) for step in range(1000)]
    assert rates[0] < rates[50] < rates[recipe.warmup_steps] == max(rates) == rates[399] > rates[401]
    assert rates[-1] < 0.05 * max(rates)


def test_a_run_too_short_to_warm_up_falls_all_the_same():
    assert train.rate_at(0.9, 50, train.Recipe()) < train.rate_at(0.3, 50, train.Recipe())


def test_targets_stand_where_they_are_learnt(batch):
    ids = batch.ids.flatten()
    assert torch.equal(ids[batch.text[:, 0] + 1], batch.text[:, 1])
    tries = ids[batch.tries[:, 0]].reshape(-1, 12)
    assert {tuple(row) for row in tries.tolist()} == {tuple(range(WORD[" 1+2"], WORD[" 1+2"] + 12))}
    assert set(ids[batch.label[:, 0]].tolist()) == {WORD[" so"]}
    assert set(batch.tries[:, 2].tolist()) == {WORD[" yes"], WORD[" no"]}


def test_only_questions_about_three_numbers_are_swapped_and_only_those_have_early_labels_of_chance(batch):
    places = set(batch.label[:, 0].tolist())
    one_and_three = batch.tries.reshape(-1, 12, 3)[:, 5, 1] != WORD[" no"]  # 1-3 can be made of any three numbers
    hard = set(batch.label[one_and_three, 0].tolist())
    assert set(batch.swap[:, 0].tolist()) == set(batch.swap[:, 1].tolist()) == hard != places
    assert not (batch.swap[:, 0] == batch.swap[:, 1]).any()
    assert torch.equal(batch.label[~one_and_three, 1], batch.label[~one_and_three, 2])
    assert not torch.equal(batch.label[one_and_three, 1], batch.label[one_and_three, 2])


def test_each_lens_has_its_targets(batch):
    model = train.build_model(SMALL, 0)
    readings = train.read(model, batch, SMALL)
    assert {name for name in readings if name.startswith("result")} == {"result@2", "result@3"}
    assert {name for name in readings if name.startswith("verdict")} == {f"verdict@{n}" for n in range(4, 9)}
    for layer in range(1, 9):
        assert torch.equal(readings[f"label@{layer}"].targets, batch.label[:, 1 if layer < 4 else 2])


def test_a_swap_changes_the_label_from_the_layer_it_is_made_for_and_nothing_else(batch):
    model = train.build_model(SMALL, 0).eval()
    with torch.no_grad():
        with_swap = train.read(model, batch, SMALL)
        without = train.read(model, batch._replace(swap=batch.swap[:0]), SMALL)
    hard = torch.isin(batch.label[:, 0], batch.swap[:, 0])
    for name, reading in with_swap.items():
        same = torch.isclose(reading.logits, without[name].logits, atol=1e-5).all(-1)
        if name in ("label@4", "label@8"):
            assert same[~hard].all()
            assert not same[hard].any()
        elif not name.startswith("label") or name in ("label@1", "label@2"):
            assert same.all()


def test_the_loss_reaches_every_weight(batch):
    model = train.build_model(SMALL, 0)
    sum(reading.loss() for reading in train.read(model, batch, SMALL).values()).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())
