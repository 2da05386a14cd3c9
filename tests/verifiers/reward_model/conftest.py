import pytest

from benchmarks.common.reward_models import KINDS, save_reward_model
from rksc_tot.verifiers import prm


@pytest.fixture(scope="session")
def reward_folders(tmp_path_factory):
    home = tmp_path_factory.mktemp("prm")
    return {kind: save_reward_model(kind, home / kind) for kind in KINDS}


@pytest.fixture(scope="session")
def reward_model(reward_folders):
    """A loaded verifier of a kind; settings other than the kind change a copy that shares the engine."""
    loaded = {}

    def verifier(kind="step_marker", **settings):
        if kind not in loaded:
            loaded[kind] = prm(reward_folders[kind])
        return loaded[kind].model_copy(update=settings)

    yield verifier
    for each in loaded.values():
        each.close()
