"""A ledger holds the counters it knows, and no others."""

import pytest
from pydantic import ValidationError

from rksc_tot.core.ledger import CompressedKV, Ledger, SharedKV, Verified


@pytest.mark.parametrize("model", [Ledger, CompressedKV, SharedKV, Verified])
def test_an_unknown_counter_is_refused_by_name(model):
    with pytest.raises(ValidationError, match=r"no_such_counter\n\s+Extra inputs are not permitted"):
        model(no_such_counter=1)


def test_an_unknown_counter_inside_a_part_is_refused_by_its_path():
    with pytest.raises(ValidationError, match=r"compression\.no_such_counter"):
        Ledger.model_validate({"compression": {"no_such_counter": 1}})


def test_a_ledger_survives_being_written_and_read():
    ledger = Ledger(tokens_sampled=3, compression=CompressedKV(tokens=2), seconds={"total": 1.0})
    assert Ledger.model_validate_json(ledger.model_dump_json()) == ledger
