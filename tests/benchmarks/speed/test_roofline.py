"""The roof has every product of a step and no other; its steps compute the same rows."""

import time

import pytest
import torch
from torch import nn

from benchmarks.common.random_models import random_model
from benchmarks.speed import roofline
from benchmarks.speed.roofline import Bench, Roof
from benchmarks.speed.steps import is_product, part_of
from rksc_tot.engine.attention import plan
from rksc_tot.engine.attention import tree_attention as attention
from rksc_tot.engine.jobs import sampler
from rksc_tot.engine.scheduler import scheduler as scheduler

ROWS, LOGITS = 5, 2


@pytest.fixture(scope="module")
def bench():
    made = Bench("tiny", "cpu", "float32")
    with made.engine:
        yield made


def test_the_roof_multiplies_every_matrix_once_and_the_output_embedding_by_rows_with_logits():
    model = random_model("tiny")
    linear = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    head = model.get_output_embeddings()
    with torch.inference_mode():
        found = [(x.shape, product(x)) for product, x in Roof(model).choose(ROWS, LOGITS)]
        assert [shape[0] for shape, _ in found] == [ROWS] * (len(linear) - 1) + [LOGITS]
        for layer, (shape, out) in zip([*(n for n in linear if n is not head), head], found, strict=True):
            torch.testing.assert_close(out, layer(torch.ones(shape)))


def test_the_faster_product_is_chosen():
    def slow(x):
        time.sleep(0.01)
        return x

    x = torch.ones(1, 1)
    assert roofline._fastest([slow, lambda x: x], x) == 1
    assert roofline._fastest([lambda x: x, slow], x) == 0


@pytest.mark.parametrize("branches", [1, 8])
def test_a_decode_step_computes_a_row_of_every_branch(bench, branches):
    rows = record_rows(bench)
    roof, step = bench.decode(branches, 4, 40)
    assert roof.shape == step.shape == (1, 4)
    assert (roof > 0).all()
    assert (step > 0).all()
    assert rows[0] == 40
    assert rows.count(branches) >= 5  # the first warms up


def test_a_prefill_step_computes_the_whole_prompt_on_a_cold_engine(bench):
    rows = record_rows(bench)
    roof, step = bench.prefill(50, 3)
    assert roof.shape == step.shape == (1, 3)
    assert [count for count in rows if count] == [50] * 4
    assert bench.engine.usage.kv_bytes == 0


def test_steps_with_other_numbers_of_rows_are_an_error(bench):
    with pytest.raises(RuntimeError, match="0 steps computed 7 rows, not 3"):
        bench._compared(7, 7, lambda: bench._write(20, 2, 4), 2)


@pytest.mark.parametrize(("branches", "new"), [(4, 6), (1, 1)])
def test_the_parts_of_a_step_make_up_the_whole(bench, branches, new):
    found = bench.share(40, branches, new)
    assert sum(found.values()) == pytest.approx(1, abs=0.001)
    assert all(0 <= share <= 1 for share in found.values())
    assert all(found[part] > 0 for part in ("attention", "linear", "planning", "other_operations"))
    assert new == 1 or found["sampling"] > 0


def record_rows(bench):
    """The rows of every step from now on."""
    rows = []
    compared = Bench._compared

    def told(wanted, logits, run, steps):
        def also():
            before = bench.engine.on_step

            def on_step(step):
                rows.append(step.rows)
                before(step)

            bench.engine.on_step = on_step
            run()

        return compared(bench, wanted, logits, also, steps)

    bench._compared = told
    return rows


@pytest.mark.parametrize(
    ("name", "product"),
    [
        ("<built-in method torch._ops.mkldnn._linear_pointwise>", True), ("<built-in method torch._C._nn.linear>", True),
        ("<built-in method torch.addmm>", True), ("<built-in method torch.bmm>", False), ("<method 'sum' of 'x'>", False),
    ],
)  # fmt: skip
def test_a_product_with_a_weight_matrix_is_known_by_its_name(name, product):
    assert is_product(name) is product


def test_files_belong_to_their_parts_of_a_step():
    of = {
        plan: "planning",
        attention: "attention",
        sampler: "sampling",
        scheduler: "bookkeeping",
        nn: "other_operations",
    }
    assert {module: part_of(module.__file__) for module in of} == of
