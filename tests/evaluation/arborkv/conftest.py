import pytest

from rksc_tot import load_engine
from rksc_tot.evaluation.arborkv import fit as arborkv
from rksc_tot.evaluation.arborkv.fit import MEASURING, fit_arborkv
from rksc_tot.strategies import BFS

PUZZLES = ["4 5 6 10", "1 2 7 8", "4 5 9 9", "3 9 12 13"]
SEED = 2


@pytest.fixture(scope="session")
def shared_engine():
    """The embedded model, with everything kept until a test leaves something out."""
    with load_engine(compress=MEASURING) as engine:
        yield engine


@pytest.fixture
def engine(shared_engine):
    yield shared_engine
    shared_engine.clear()
    assert shared_engine.usage.kv_bytes == 0  # no handle or copy leaked
    shared_engine.check_integrity()


@pytest.fixture(scope="session")
def found(shared_engine):
    """A fit on the embedded model, to fewer thoughts than a user may fit to; it costs some seconds."""
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arborkv, "LEAST", 6)
        options = {"engine": shared_engine, "strategy": BFS(b=3, k=12), "seed": SEED, "on_problem": seen.append}
        found = fit_arborkv("game24", PUZZLES, **options)
    assert seen == PUZZLES
    return found
