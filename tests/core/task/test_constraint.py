"""Constraints of thoughts, without a model."""

import sys

import pytest
from pydantic import BaseModel

from rksc_tot import Constraint, ConstraintError, grammar, json_schema, regex


def deep(levels):
    schema = {}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


def test_equal_schemas_are_equal_constraints_in_every_form():
    class Sum(BaseModel):
        sum: int

    schema = {"type": "object", "properties": {"sum": {"type": "integer"}}}
    assert json_schema(schema) == json_schema('{"type": "object", "properties": {"sum": {"type": "integer"}}}')
    assert hash(regex("a")) == hash(Constraint("regex", "a"))
    assert json_schema(Sum) == json_schema(Sum.model_json_schema())


@pytest.mark.parametrize(
    ("make", "wrong"),
    [
        (lambda: json_schema("{"), "is not JSON"),
        (lambda: json_schema("[1]"), "is not a JSON object"),
        (lambda: json_schema({"const": object()}), "is not JSON"),
        (lambda: json_schema(int), "int is not a pydantic model"),
        (lambda: json_schema(deep(100_000)), "is not JSON"),
        (lambda: regex(""), "is not a text, or empty"),
        (lambda: grammar(None), "is not a text, or empty"),
        (lambda: regex("a" * 1_000_001), "has 1000001 characters"),
    ],
)
def test_a_source_that_cannot_be_a_constraint_is_refused_in_a_sentence(make, wrong):
    with pytest.raises(ConstraintError, match=wrong):
        make()


def test_constraints_are_made_without_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    assert json_schema({}).name == "JSON schema"
