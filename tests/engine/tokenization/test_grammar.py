"""The tokens that a constraint allows: every text that ends satisfies it, and no valid text is forbidden."""

import json
import random
import re
import sys
import time

import jsonschema
import pytest

from rksc_tot import ConstraintError, MissingExtra, grammar, json_schema, regex
from rksc_tot.engine.tokenization import grammar as module
from rksc_tot.engine.tokenization.grammar import Grammars
from rksc_tot.engine.tokenization.text import TextTokenizer
from rksc_tot.tasks.game24.tokenizer import build_tokenizer
from tests.engine.conftest import byte_tokenizer
from tests.engine.tokenization.test_written import byte_fallback
from tests.seeds import seeds

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["é", "日本", "😀"]}, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
SCHEMAS = [
    PERSON,
    {"anyOf": [{"type": "null"}, {"type": "boolean"}, {"const": "x\ty"}]},
    {"$ref": "#/$defs/n", "$defs": {"n": {"type": "array", "items": {"$ref": "#/$defs/n"}, "maxItems": 2}}},
]
PATTERNS = [r"(yes|no)+!", r"\d{1,3} [+*/-] \d{1,3} = -?\d+\n", r"[é€😀]{2,5}", r"a/b\\(c|d)", r"(?i)ab*c"]


def grammars(raw, spare=0, eos=None):
    eos = {raw.eos_token_id} if eos is None else eos
    return Grammars(TextTokenizer(raw), len(raw) + spare, frozenset(eos))


BYTES, FALLBACK = byte_tokenizer(), byte_fallback()
KINDS = {"byte level": (BYTES, grammars(BYTES, 5)), "byte fallback": (FALLBACK, grammars(FALLBACK, eos={0}))}


def walk(state, chance, most=400):
    """Random allowed tokens until the text is complete or end of text is drawn; None if it became too long."""
    tokens = []
    while not state.complete:
        assert not state.stuck
        token = int(chance.choice(state.allowed.nonzero()[0]))
        if state.can_end and token in state._eos:
            return tokens
        if len(tokens) == most:
            return None
        tokens.append(token)
        state.push(token)
    return tokens


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", seeds(1, 20))
def test_every_text_that_ends_satisfies_its_constraint(kind, seed):
    raw, compiled = KINDS[kind]
    chance = random.Random(seed)
    anchor = raw.encode("a", add_special_tokens=False)
    for constraint in [*map(json_schema, SCHEMAS), *map(regex, PATTERNS)]:
        for _ in range(10):
            tokens = walk(compiled.matcher(constraint, 1000), chance)
            if tokens is None:
                continue
            text = raw.decode([*anchor, *tokens])[len(raw.decode(anchor)) :]
            if constraint.kind == "regex":
                assert re.fullmatch(constraint.source, text)
            else:
                jsonschema.validate(json.loads(text), json.loads(constraint.source))
                assert "\n" not in text


@pytest.mark.parametrize("kind", KINDS)
def test_a_valid_text_is_allowed_in_every_spelling(kind):
    raw, compiled = KINDS[kind]
    state = compiled.matcher(json_schema(PERSON), 1000)
    for token in TextTokenizer(raw).continuation('{"name": "yes é\\"", "age": 7, "tags": ["日本", "😀"]}'):
        assert state.allowed[token]
        state.push(token)
    assert state.complete


def test_end_of_text_is_allowed_only_where_the_text_is_valid():
    state = KINDS["byte level"][1].matcher(regex("a+b?"), 10)
    eos, [a], [b] = BYTES.eos_token_id, BYTES.encode("a"), BYTES.encode("b")
    assert not state.allowed[eos]
    state.push(a)
    assert state.allowed[eos]
    assert not state.complete
    state.push(b)
    assert state.complete


def test_without_end_of_text_a_valid_text_goes_on_until_it_is_complete():
    state = grammars(BYTES, eos=()).matcher(regex("a+b"), 10)
    state.push(*BYTES.encode("a"))
    assert sorted(state.allowed.nonzero()[0].tolist()) == sorted(BYTES.encode("a") + BYTES.encode("b"))


def test_control_tokens_and_ids_without_a_token_are_never_allowed():
    raw, compiled = KINDS["byte level"]
    state = compiled.matcher(regex("[^!]*"), 10)
    assert not state.allowed[[*range(2), *range(len(raw), len(raw) + 5)]].any()
    assert state.allowed[BYTES.encode("a bc\n", add_special_tokens=False)].all()


def test_a_fork_does_not_change_its_origin():
    state = KINDS["byte level"][1].matcher(regex("ab|ac"), 10)
    state.push(*BYTES.encode("a"))
    other, before = state.fork(), state.allowed.copy()
    other.push(*BYTES.encode("b"))
    assert other.complete
    assert (state.allowed == before).all()
    assert not state.complete


@pytest.mark.parametrize(
    ("constraint", "wrong"),
    [
        (json_schema({"type": "array", "uniqueItems": True}), "uniqueItems"),
        (json_schema({"type": "integer", "minimum": 3, "maximum": 1}), "minimum .3. is greater than maximum"),
        (json_schema({"not": {}}), "Unimplemented keys"),
        (json_schema({"$ref": "http://nowhere.example/a"}), "nowhere"),
        (json_schema({"type": "string", "format": "no such"}), "Unknown format"),
        (regex("("), "unclosed group"),
        (regex("(?=a)b"), "look-around"),
        (regex(r"(a)\1"), "backreferences are not supported"),
        (regex("[^\\x00-\\U0010ffff]"), "can spell satisfies it"),
        (regex("(|)"), "allows only the empty text"),
        (grammar("start: nothing"), "unknown name"),
        (grammar("start: start"), "can spell satisfies it"),
        (grammar('%llguidance {}\nstart: "a"'), "leave them out"),
        (grammar("start: </s>"), "can spell satisfies it"),
    ],
)
def test_a_constraint_that_cannot_be_used_is_refused_in_a_sentence(constraint, wrong):
    with pytest.raises(ConstraintError, match=wrong) as error:
        KINDS["byte level"][1].matcher(constraint, 100)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 500


def test_a_vocabulary_that_cannot_spell_the_text_is_refused_or_ends_stuck():
    words = build_tokenizer()
    compiled = grammars(words)
    with pytest.raises(ConstraintError, match="can spell satisfies it"):
        compiled.matcher(json_schema({"type": "object"}), 10)
    state = compiled.matcher(regex("1 [+] 2|so x"), 10)
    for token in words.encode("1 + 2"):
        assert state.allowed[token]
        state.push(token)
    assert state.complete
    state = compiled.matcher(regex("1 [+] x"), 10)
    for token in words.encode("1 +"):
        state.push(token)
    assert state.stuck


@pytest.mark.parametrize(
    ("constraint", "most"),
    [(regex("a{30}"), 30), (json_schema({"type": "string", "minLength": 30}), 32), (json_schema(PERSON), 40)],
)
def test_a_constraint_that_needs_more_tokens_than_the_limit_is_refused(constraint, most):
    compiled = KINDS["byte level"][1]
    with pytest.raises(ConstraintError, match=r"the shortest text found .* the limit is 3") as error:
        compiled.matcher(constraint, 3)
    needs = int(re.search(r"has (\d+) tokens", str(error.value))[1])
    assert needs <= most
    assert not compiled.matcher(constraint, needs).stuck


@pytest.mark.parametrize(
    "constraint",
    [
        regex("(a{1000}){1000}"),
        regex("(.*a){500}"),
        regex("(x+x+)+y"),
        json_schema({"type": "string", "minLength": 100_000}),
        json_schema({"enum": [str(n) for n in range(20_000)]}),
        json_schema({"type": "object", "properties": {f"k{n}": {"type": "string"} for n in range(500)}}),
        grammar('start: ("a"|"b"|"c"){1000000}'),
    ],
)
def test_a_hostile_constraint_costs_bounded_time(constraint):
    began = time.perf_counter()
    try:
        state = KINDS["byte level"][1].matcher(constraint, 1000)
        for _ in range(20):
            if state.stuck or state.complete:
                break
            state.push(int(random.Random(0).choice(state.allowed.nonzero()[0])))
    except ConstraintError:
        pass
    assert time.perf_counter() - began < 120


def test_a_constraint_is_compiled_once(monkeypatch):
    compiled, made = grammars(BYTES), []
    monkeypatch.setattr(module, "_lark", lambda library, constraint: made.append(constraint) or 'start: "a"')
    for _ in range(3):
        compiled.matcher(regex("a"), 9)
        compiled.matcher(regex("b"), 9)
    assert made == [regex("a"), regex("b")]


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"rksc_tot\[structured\]"):
        grammars(BYTES).matcher(regex("a"), 9)
