"""``load_engine``: what is held where is looked up, and known to go together, before anything is loaded."""

import pytest

from rksc_tot.cache.offload.store import open_store
from rksc_tot.core.errors import ConfigError
from rksc_tot.engine import load_engine
from rksc_tot.engine.transformers_engine.load import memory_settings
from rksc_tot.policies.compression.lossless import Lossless
from rksc_tot.policies.compression.streaming_llm import Streaming


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"lossless": True}, "nothing reduces it - name a compression policy, or leave lossless out"),
        ({"lossless": Lossless()}, "nothing reduces it"),
        ({"offload_budget": "2GiB"}, "offload_budget is '2GiB', and nothing is offloaded - set offload to cpu or disk"),
        ({"offload_folder": "/"}, "offload_folder is '/', and nothing is offloaded"),
        ({"offload": "cpu", "offload_folder": "/"}, "offload to cpu has no use for the folder"),
        ({"offload": "tape"}, "offload is 'tape' - name one of cpu, disk"),
        ({"offload": "disk", "offload_folder": "no/such"}, "there is no folder 'no/such'"),
        ({"offload": "cpu", "offload_budget": 0}, "offload_budget 0 is no KV budget"),
        ({"compress": "lru"}, "there is no compression policy 'lru'"),
        ({"compress": 3}, "compress is 3 - name one of arborkv"),
        ({"kv_budget": "much"}, "kv_budget 'much' is no KV budget"),
        *(
            (
                {"compress": "streaming", "lossless": wrong},
                f"lossless is {wrong!r} - it takes True, False or a Lossless object",
            )
            for wrong in ("no", "yes", "", 0, 2, [], None, Lossless)
        ),
        ({"eviction": "fifo"}, "no eviction policy 'fifo'"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_loaded(settings, says):
    with pytest.raises(ConfigError) as refused:
        load_engine("/no/such/model", **settings)
    assert says in str(refused.value)


def test_what_goes_together_is_looked_up():
    found = memory_settings(kv_budget="1MiB", eviction="lru", compress="streaming", lossless=True, offload="cpu")
    assert (found["kv_budget"], found["eviction"].name, found["compress"]) == (1 << 20, "lru", Streaming())
    assert (found["lossless"], found["offload"], found["offload_budget"]) == (True, "cpu", "1GiB")
    assert memory_settings() == memory_settings(offload_budget="1GiB")


def test_the_engine_is_made_of_it(tmp_path):
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


def test_a_store_of_ones_own_is_used():
    store = open_store("cpu", "1MiB")
    with load_engine(offload=store):
        pass
    assert store.closed
    with pytest.raises(ConfigError, match="closed"):
        load_engine("/no/such/model", offload=store)
