"""``load_engine`` checks all engine settings before it loads anything."""

import pytest

from rksc_tot.cache.offload.open_store import open_store
from rksc_tot.core.errors import ConfigError
from rksc_tot.engine import load_engine
from rksc_tot.engine.transformers_engine.settings import EngineSettings
from rksc_tot.policies.compression.arborkv import ArborKV
from rksc_tot.policies.compression.lossless import Lossless
from rksc_tot.policies.compression.streaming_llm import Streaming


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"lossless": True}, "and compress is not set - name a compression policy, or leave lossless out"),
        ({"lossless": Lossless()}, "and compress is not set"),
        ({"offload_budget": "2GiB"}, "offload_budget is '2GiB', and offload is not set - set offload to cpu or disk"),
        ({"offload_folder": "/"}, "offload_folder is '/', and offload is not set"),
        ({"offload": "cpu", "offload_folder": "/"}, "offload to cpu has no use for the folder"),
        ({"offload": "tape"}, "offload is 'tape' - name one of cpu, disk"),
        ({"offload": "disk", "offload_folder": "no/such"}, "there is no folder 'no/such'"),
        ({"offload": "cpu", "offload_budget": 0}, "offload_budget 0 is no size in bytes"),
        ({"compress": "lru"}, "there is no compression policy 'lru'"),
        ({"compress": 3}, "compress is 3 - name one of arborkv"),
        ({"kv_budget": "much"}, "kv_budget 'much' is no size in bytes"),
        *(
            (
                {"compress": "streaming", "lossless": wrong},
                f"lossless is {wrong!r} - give True, False or a Lossless object",
            )
            for wrong in ("no", "yes", "", 0, 2, [], None, Lossless)
        ),
        ({"eviction": "fifo"}, "no eviction policy 'fifo'"),
        ({"max_batch_tokens": 0}, "max_batch_tokens: should be greater than or equal to 1, not 0"),
        ({"max_batch_tokens": True}, "max_batch_tokens: should be a valid integer, not True"),
        ({"pack": "no"}, "pack: should be a valid boolean, not 'no'"),
        ({"kv_bugdet": 1}, "there is no setting 'kv_bugdet' - did you mean 'kv_budget'? its settings are"),
    ],
)
def test_wrong_settings_are_refused_before_anything_is_loaded(settings, says):
    with pytest.raises(ConfigError) as refused:
        load_engine("/no/such/model", **settings)
    assert says in str(refused.value)


def test_settings_are_looked_up_once_and_keep_every_value():
    settings = EngineSettings(kv_budget="1MiB", eviction="lru", compress="streaming", lossless=True, offload="cpu")
    assert (settings.kv_budget, settings.eviction.name, settings.compress) == (1 << 20, "lru", Streaming())
    assert (settings.lossless, settings.offload, settings.offload_budget) == (Lossless(), "cpu", 1 << 30)
    assert EngineSettings(offload_budget="1024MiB") == EngineSettings()
    assert EngineSettings.of(settings, {}) is settings
    assert EngineSettings.of(settings, {"kv_budget": 9}) == settings.model_copy(update={"kv_budget": 9})
    assert EngineSettings.of(None, {"kv_budget": 9}).kv_budget == 9


@pytest.mark.parametrize(
    ("settings", "lossy"),
    [
        ({}, False),
        ({"compress": "streaming"}, True),
        ({"compress": "streaming", "lossless": True}, False),
        ({"compress": "arborkv"}, False),
        ({"compress": ArborKV(rehydrate=False)}, True),
    ],
)
def test_only_work_from_compressed_kv_is_lossy(settings, lossy):
    assert EngineSettings(**settings).lossy is lossy


def test_the_engine_uses_the_settings(tmp_path):
    how = {
        "compress": Streaming(budget=9),
        "lossless": Lossless(horizon=5),
        "offload": "disk",
        "offload_folder": tmp_path,
    }
    with load_engine(**how, kv_budget="2MiB") as engine:
        assert engine.compression == Streaming(budget=9)
        assert engine.numerics["lossless"]["horizon"] == 5
        assert engine.numerics["offload"] == "disk"
        assert engine.usage.kv_budget <= 2 << 20
    with load_engine() as engine:
        numerics = engine.numerics
        assert (engine.compression, numerics["compression"], numerics["lossless"], numerics["offload"]) == (
            None,
            None,
            False,
            None,
        )


def test_a_store_of_the_user_is_used_and_closed_with_the_engine():
    store = open_store("cpu", "1MiB")
    with load_engine(offload=store):
        pass
    assert store.closed
    with pytest.raises(ConfigError, match="closed"):
        load_engine("/no/such/model", offload=store)
