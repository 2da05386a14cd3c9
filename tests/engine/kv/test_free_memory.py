"""The KV budget ``auto``."""

import pytest
import torch

from rksc_tot.core.errors import ConfigError
from rksc_tot.engine import load_engine
from rksc_tot.engine.kv import free_memory
from rksc_tot.engine.kv.free_memory import automatic_budget
from rksc_tot.engine.transformers_engine.settings import EngineSettings

CPU = torch.device("cpu")


@pytest.fixture
def system(monkeypatch, tmp_path):
    """Files that say how much memory is left, by number of bytes."""

    def made(available=None, limit=None, used=None):
        files = [tmp_path / name for name in ("meminfo", "limit", "used")]
        for file, text in zip(
            files, (available and f"MemTotal: 9 kB\nMemAvailable: {available} kB\n", limit, used), strict=True
        ):
            if text is not None:
                file.write_text(str(text), encoding="ascii")
        monkeypatch.setattr(free_memory, "MEMINFO", files[0])
        monkeypatch.setattr(free_memory, "GROUPS", ((files[1], files[2]),))

    return made


def test_it_is_half_of_what_the_host_or_its_container_has_left(system):
    system(available=1000)
    assert automatic_budget(CPU) == 512_000
    system(limit=600_000, used=400_000)
    assert automatic_budget(CPU) == 100_000
    system(limit="max")
    assert automatic_budget(CPU) == 512_000


def test_a_system_that_does_not_say_is_refused_in_a_sentence(system):
    system()
    with pytest.raises(ConfigError, match="does not say how much memory is left - set kv_budget to a size"):
        automatic_budget(CPU)


def test_an_engine_takes_it(system):
    system(available=4096)
    with load_engine(kv_budget="auto") as engine:
        assert 0 < engine.usage.kv_budget <= 2 << 20
        assert engine.usage.kv_budget > (2 << 20) - engine.bytes_per_token


def test_results_that_depend_on_it_are_refused():
    with pytest.raises(ConfigError, match="kv_budget is 'auto', which differs between runs"):
        EngineSettings(kv_budget="auto", compress="streaming")
    assert EngineSettings(kv_budget=" Auto ", compress="streaming", lossless=True).kv_budget == "auto"
