"""Training is seeded, writes an ordinary folder, and fails in a sentence."""

import json

import pytest
import torch
from safetensors.torch import load_file

from rksc_tot.engine import load_engine
from rksc_tot.models import train
from rksc_tot.models.game24_data import held_out


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        out = tmp_path_factory.mktemp(name)
        train.main("game24", out=out, steps=2, seed=seed, exclude=None, rows="1-2", threads=1)
        made.append(out)
    return made


def test_the_same_seed_gives_the_same_weights(folders):
    a, b, c = (load_file(folder / "model.safetensors") for folder in folders)
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert not all(torch.equal(a[name], c[name]) for name in a)


def test_the_folder_loads_like_any_other(folders):
    with load_engine(folders[0]) as engine:
        assert engine.capabilities.route == "fast"
    assert {t.dtype for t in load_file(folders[0] / "model.safetensors").values()} == {torch.float16}


def test_what_was_held_out_is_written_beside_the_weights(folders):
    sets = json.loads((folders[0] / "held_out.json").read_text(encoding="utf-8"))
    assert sets["roots"] == [" ".join(map(str, p)) for p in held_out().root_puzzles]


def test_the_rate_warms_up_stays_and_falls():
    recipe = train.Recipe()
    rates = [train.rate_at(step / 1000, step, recipe) for step in range(1000)]
    assert rates[0] < rates[50] < rates[recipe.warmup_steps] == max(rates) == rates[499]
    assert rates[-1] < 0.05 * max(rates)
