"""The line about the model: its dtype, its device and a faster dtype."""

import pytest

from rksc_tot import load_engine
from rksc_tot.cli.output import dtype_advice, write_model
from tests.game24_player import player


@pytest.mark.parametrize(
    ("dtype", "computes", "says"),
    [
        ("float32", False, ""),
        ("bfloat16", True, ""),
        ("float32", True, "--dtype bfloat16 takes half the memory and is faster"),
        ("bfloat16", False, "--dtype float32 is faster for search than bfloat16"),
        ("float16", False, "--dtype float32 is faster for search than float16"),
    ],
)
def test_a_faster_dtype_for_this_processor_is_suggested(dtype, computes, says):
    advice = dtype_advice(dtype, computes)
    assert says in advice
    assert bool(says) == bool(advice)


def test_the_model_is_shown_with_dtype_and_device(capsys):
    with load_engine() as engine:
        write_model(engine)
    assert capsys.readouterr().out == "model embedded, float32 on cpu\n"
    write_model(player())
    assert capsys.readouterr().out == ""
