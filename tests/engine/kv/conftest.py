import pytest

from rksc_tot.engine import TransformersEngine
from rksc_tot.engine.base import Account
from tests.engine.conftest import byte_tokenizer, llama
from tests.engine.kv.lossless import grow, run


@pytest.fixture(scope="module")
def tokenizer():
    return byte_tokenizer()


@pytest.fixture(scope="module")
def make(tokenizer):
    """Makes packed engines on one model, so that no bit of a row depends on other rows of the batch."""
    model = llama(len(tokenizer))

    def made(**options):
        engine = TransformersEngine(model, tokenizer, name="tiny", pack=True, **options)
        assert engine.capabilities.batch_invariant
        return engine

    return made


@pytest.fixture(scope="module")
def wanted(make):
    return run(make(), lambda engine: grow(engine, Account(), "s"))
