import json
from types import MappingProxyType

import pytest

from rksc_tot.core.errors import ConfigError
from rksc_tot.core.task import Question
from rksc_tot.engine.mock.engine import MockEngine
from rksc_tot.evaluation.calibration import Calibration
from rksc_tot.verifiers import LMValue
from tests.layered_mock import LAYERS, WORTH, make_engine, make_task, write


def edited(calibration, change):
    """The file after an edit by hand."""
    record = json.loads(calibration.model_dump_json()) | {"seal": calibration._checksum()}
    change(record)
    return json.dumps(record)


def load(tmp_path, text):
    file = tmp_path / "c.json"
    file.write_text(text)
    return Calibration.load(file)


def test_a_saved_record_loads_unchanged(accepted, tmp_path):
    accepted.save(tmp_path / "c.json")
    assert Calibration.load(tmp_path / "c.json") == accepted
    assert Calibration.load(str(tmp_path / "c.json")).exit.rule == accepted.exit.rule
    text = (tmp_path / "c.json").read_text()
    assert '"delta": 0.05' in text
    assert len(text.splitlines()) > 50  # a person can read it


def test_a_calibration_holds_for_its_model_and_task(accepted):
    accepted.check(make_engine(), make_task(), LMValue())


def named(engine, name):
    engine.name = name
    return engine


@pytest.mark.parametrize(
    ("engine", "task", "message"),
    [
        (lambda: make_engine(layers=5), make_task, "the layers: 6 of 'mock', now 5 of 'mock'"),
        (lambda: make_engine(layers=0), make_task, "the layers: 6 .*, now 0"),
        (lambda: named(make_engine(), "other"), make_task, "the weights: .* of 'mock', now .* of 'other'"),
        (make_engine, lambda: make_task(prompt=lambda p: f"{p} :\n"), "the text of the prompt or question"),
        (
            make_engine,
            lambda: make_task(question=lambda p, path: Question("worth?", WORTH)),
            "the text of the prompt or question",
        ),
        (
            make_engine,
            lambda: make_task(question=lambda p, path: Question(" worth?", {"good": 2.0, "bad": 0.0})),
            "the value of a label, has changed",
        ),
        (
            make_engine,
            lambda: make_task(question=lambda p, path: Question(" worth?", {"bad": 0.0, "good": 1.0})),
            "the labels: good, bad, now bad, good",
        ),
        (make_engine, lambda: make_task(question=lambda p, path: None), "the labels: good, bad, now none"),
        (make_engine, lambda: make_task(keep_stop=False), "the text"),
        (make_engine, lambda: make_task(parse=lambda p, path, text: 1 / 0), "refuses the problem 'problem"),
    ],
)
def test_another_model_task_or_text_is_refused_with_the_difference(accepted, engine, task, message):
    with pytest.raises(ConfigError, match=f"is for another model or task: .*{message}.* - make one with"):
        accepted.check(engine(), task(), LMValue())


def test_another_dtype_is_refused(accepted):
    class Half(MockEngine):
        numerics = MappingProxyType({"dtype": "bfloat16"})

    engine = Half(write, layers=LAYERS)
    with pytest.raises(ConfigError, match="the dtype: None of 'mock', now bfloat16"):
        accepted.check(engine, make_task(), LMValue())


def loosen(record):
    step = record["exit"]["walk"][record["exit"]["chosen"]]
    step["k"] = step["n"] // 2


def too_deep(record):
    record["exit"]["walk"][0]["rule"]["thresholds"] = {"6": 0.5}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (loosen, "the rule under 'exit' does not pass its test at delta 0.05 and alpha 0.05"),
        (lambda r: r.update(delta=0.001), "does not pass its test at delta 0.001"),
        (lambda r: r.update(delta=float("nan")), "delta: "),
        (lambda r: r.update(delta=1.5), "delta: .*less than 1, not 1.5"),
        (lambda r: r.update(alpha=0), "alpha: .*greater than 0, not 0"),
        (lambda r: r.update(layers=-1), "layers: .*, not -1"),
        (too_deep, "exits after layer 6 of 6"),
        (lambda r: r["exit"]["walk"][0]["rule"]["thresholds"].update({"3": -1}), "thresholds.3: .*, not -1"),
        (lambda r: r["exit"]["walk"][0]["rule"].update(thresholds={"3": float("nan")}), "thresholds.3: "),
        (lambda r: r["exit"]["walk"][0].update(n=10**9), "n: .*, not 1000000000"),
        (lambda r: r["exit"]["walk"][0].update(k=-1), "k: .*, not -1"),
        (lambda r: r["exit"]["walk"][0].update(k=5000), "more errors than acts"),
        (lambda r: r["exit"].update(chosen=99), "step 99 is chosen of"),
        (lambda r: r["exit"].update(chosen=None), "either a chosen step or the reason"),
        (lambda r: r["skip"].update(chosen=0), "either a chosen step or the reason"),
        (lambda r: r.update(schema_version=2), "schema_version"),
        (lambda r: r.pop("weights"), "weights must be given"),
        (lambda r: r.update(extra=1), "there is no setting 'extra'"),
        (lambda r: r["exit"]["walk"][0]["rule"].update(name="psychic"), "exit.walk.0.rule"),
    ],
)
def test_an_edited_file_is_refused_in_one_line_that_names_the_fault(accepted, tmp_path, change, message):
    with pytest.raises(ConfigError, match=f"'.*c.json' is not a calibration: .*{message}") as caught:
        load(tmp_path, edited(accepted, change))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"x"', "{}"])
def test_a_file_without_a_calibration_is_refused(tmp_path, text):
    with pytest.raises(ConfigError, match="is not a calibration"):
        load(tmp_path, text)


def test_a_file_that_cannot_be_read_or_written_is_an_error_of_one_sentence(accepted, tmp_path):
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        Calibration.load(tmp_path / "missing.json")
    with pytest.raises(ConfigError, match="cannot be written"):
        accepted.save(tmp_path / "no" / "folder.json")


def test_the_bound_is_that_of_the_chosen_step(accepted):
    assert 0 < accepted.bound(accepted.exit) <= accepted.delta
    assert accepted.bound(accepted.skip) is None


def test_a_consistent_edit_is_refused_by_the_checksum(accepted, tmp_path):
    def loosen(record):
        layer = min(record["exit"]["walk"][0]["rule"]["thresholds"])
        record["exit"]["walk"][0]["rule"]["thresholds"][layer] = 0.0001

    for change in (loosen, lambda record: record.update(task="another"), lambda record: record.update(seal="0" * 64)):
        with pytest.raises(ConfigError, match="has been changed since it was written"):
            load(tmp_path, edited(accepted, change))
    assert load(tmp_path, edited(accepted, lambda record: None)) == accepted


def test_another_task_is_refused_by_its_name(accepted):
    task = make_task()
    task.name = "another"
    with pytest.raises(ConfigError, match=r"the task: '.*', now 'another'"):
        accepted.check(make_engine(), task, LMValue())
