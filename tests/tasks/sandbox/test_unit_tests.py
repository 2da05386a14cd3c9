import pytest

from rksc_tot.core.errors import TaskError
from rksc_tot.tasks.sandbox import Sandbox
from rksc_tot.tasks.sandbox.harness import canonical, run_calls
from rksc_tot.tasks.sandbox.unit_tests import UnitTest, check_tests, read_test


@pytest.mark.parametrize(
    ("given", "test"),
    [
        (["add(2, 3)", 5], UnitTest("add(2, 3)", 5)),
        (("f()", None), UnitTest("f()", None)),
        ("assert add(2, 3) == 5", UnitTest("add(2, 3)", 5)),
        ("assert add(2, 3) == 5, 'wrong'", UnitTest("add(2, 3)", 5)),
        ("assert pair(1) == (1, -1)", UnitTest("pair(1)", (1, -1))),
        ("assert add(1, 1) == two()", UnitTest("bool(add(1, 1) == two())", True)),
        ("assert not f(1)", UnitTest("bool(not f(1))", True)),
        ("for n in range(3):\n    assert f(n)", UnitTest("for n in range(3):\n    assert f(n)", None)),
    ],
)
def test_tests_are_pairs_or_asserts(given, test):
    assert read_test(given) == test


@pytest.mark.parametrize("given", ["", "assert (", 5, None, ["f()"], [1, 2], "x = '\0'"])
def test_anything_else_is_refused_with_an_example(given):
    with pytest.raises(TaskError, match="write tests such as"):
        read_test(given)


@pytest.mark.parametrize(
    "value", [1.0, True, (1, [2.5, None]), {"a": {1, 2}}, {2: 1, 1: 2}, float("nan"), b"x", 10**50]
)
def test_equal_values_have_equal_forms(value):
    assert canonical(value) == canonical(value)


@pytest.mark.parametrize(
    ("one", "other"), [([1], (1,)), ("1", 1), (None, 0), ({1: 2}, {2: 1}), (0.1 + 0.2, 0.3), ({"list": [1]}, [1])]
)
def test_different_values_have_different_forms(one, other):
    assert canonical(one) != canonical(other)


def test_an_object_that_claims_to_be_equal_to_anything_is_not():
    class Five(int):
        def __eq__(self, other):
            return True

        __hash__ = int.__hash__

    assert canonical(Five(4)) != canonical(5)


def test_the_harness_tells_each_value_or_what_was_raised():
    lines = []
    run_calls("def half(n):\n    return 12 / n", ["half(4)", "half(0)", "half", "assert half(2) == 6"], lines.append)
    assert lines[0] == '[0, {"value": 3}]'
    assert lines[1] == '[1, {"raised": "ZeroDivisionError: division by zero"}]'
    assert "repr" in lines[2]
    assert lines[3] == '[3, {"value": null}]'


@pytest.fixture(scope="module")
def sandbox():
    sandbox = Sandbox(seconds=120, cpu_seconds=60)
    if missing := sandbox.guarantees().missing:
        pytest.skip(f"this system cannot hold {missing}")
    return sandbox


TESTS = [read_test(test) for test in (["add(2, 3)", 5], "assert add(-1, 1) == 0", "assert add('a', 'b') == 'ab'")]


@pytest.mark.parametrize(
    ("code", "share", "failure"),
    [
        ("def add(a, b):\n    return a + b", 1.0, None),
        ("def add(a, b):\n    print('hi')\n    return abs(a) + abs(b)", 1 / 3, "add(-1, 1) gave 2, not 0"),
        ("def add(a, b):\n    return int(a) + b", 2 / 3, "add('a', 'b') raised ValueError: invalid literal"),
        ("def sub(a, b):\n    return a - b", 0.0, "add(2, 3) raised NameError"),
        ("def add(a, b", 0.0, "add(2, 3) was not reached: SyntaxError"),
        ("import os\nos._exit(0)", 0.0, "add(2, 3) was not reached: the program ended before it"),
        ("def add(a, b):\n    raise SystemExit", 0.0, "add(2, 3) raised SystemExit"),
        ("import os\ndef add(a, b):\n    os._exit(0) if a == 'a' else 0\n    return a + b", 2 / 3, "was not reached"),
    ],
)
def test_the_share_of_passed_tests_and_what_failed(sandbox, code, share, failure):
    report = check_tests(sandbox, code, TESTS)
    assert report.share == share
    assert failure is None or failure in next(filter(None, report.failures))


def test_forged_replies_pass_no_test_whose_value_they_do_not_know(sandbox):
    code = """
import os, sys, gc
for n in range(3):
    os.write(1, f'[{n}, {{"value": 1}}]\\n[{n}, {{"value": null}}]\\n[[], {{}}]\\n[1e999, {{}}]\\nnull\\n'.encode())
class Any:
    __eq__ = lambda self, other: True
    __hash__ = lambda self: 0
main = sys.modules["__main__"]
main.canonical = lambda value: True
add = lambda a, b: Any()
"""
    assert check_tests(sandbox, code, TESTS).share == 0
