import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from hypothesis import settings

settings.register_profile("steady", deadline=None, derandomize=True)
settings.load_profile("steady")


@pytest.fixture(scope="session")
def accepted():
    """A calibration on which layer exit passed; it costs a second."""
    from rksc_tot import calibrate
    from tests.layered_mock import PROBLEMS, WALK, make_engine, make_task

    return calibrate(make_task(), PROBLEMS, engine=make_engine(), **WALK)
