import pytest

from benchmarks.common.reward_models import KINDS, save_reward_model
from rksc_tot.engine.reward.load import load_reward_engine

PROBLEM = "How much is 2 + 3, times 4?"
STEPS = ["two plus three", "is five", "times four is 20"]


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """A folder with a tiny reward model of each kind."""
    home = tmp_path_factory.mktemp("reward_models")
    return {kind: save_reward_model(kind, home / kind) for kind in KINDS}


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture(scope="session")
def engines(folders):
    """An engine of each kind, made when it is first asked for."""
    made = {}

    def engine_of(kind):
        if kind not in made:
            made[kind] = load_reward_engine(folders[kind])
        return made[kind]

    yield engine_of
    for engine in made.values():
        engine.close()


@pytest.fixture
def engine(engines, kind):
    """The engine of a kind, without KV of earlier tests."""
    engine = engines(kind)
    yield engine
    engine.check_integrity()
    for segment in list(engine.cache.segments()):
        while segment.handles:
            engine.cache.drop(segment, prompt=bool(segment.prompts))
    engine.clear()
