"""Figures of ``python -m benchmarks thinking`` on a few replies."""

from benchmarks.tasks.thinking import engine_replies, kinds, mock_replies


def test_no_reply_is_an_exception_or_a_budget_overrun():
    counts = mock_replies(40)
    assert counts["replies"] == 40
    assert counts["forced_closes"] > 0
    for name in ("exceptions", "budget_overruns", "markers_in_text", "handles_left"):
        assert counts[name] == 0


def test_a_scripted_model_writes_markers_in_several_tokens():
    assert engine_replies(2) == {"engine_replies": 2, "engine_exceptions": 0, "engine_overruns": 0}


def test_odd_replies_are_told_apart():
    assert kinds("a<think>b</think>c") == ["nested"]
    assert kinds("abc") == ["missing"]
    assert kinds("a</think></think>") == ["doubled"]
    assert kinds("a</thi nk></think>c") == ["split"]
