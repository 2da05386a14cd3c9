"""Opening an offload store: a store that cannot be opened is refused with a message."""

import pytest

from rksc_tot.cache.offload.open_store import open_store
from rksc_tot.core.errors import ConfigError


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("gpu",), "offload is 'gpu' - name one of cpu, disk"),
        ((3,), "offload is 3"),
        (("cpu", 0), "offload_budget 0 is no size in bytes"),
        (("disk", "-1MiB"), "'-1MiB' is no size in bytes"),
        (("disk", "1MiB", "no/such/folder"), "there is no folder 'no/such/folder'"),
        (("disk", "1MiB", __file__), "there is no folder"),
        (("disk", "1MiB", ""), "offload_folder is '' - give the path of a folder, or leave it out"),
        (("disk", "1MiB", 5), "offload_folder is 5 - give the path"),
        (("disk", "1MiB", ["/tmp"]), "offload_folder is ['/tmp'] - give the path"),
        (("disk", "1MiB", True), "offload_folder is True - give the path"),
        (("disk", "1MiB", b"/tmp"), "offload_folder is b'/tmp' - give the path"),
        (("cpu", "1MiB", "."), "no use for the folder '.'"),
    ],
)
def test_a_store_that_cannot_be_opened_is_refused_with_the_reason(arguments, said):
    with pytest.raises(ConfigError) as raised:
        open_store(*arguments)
    assert said in str(raised.value)


def test_a_given_store_is_used_as_it_is():
    store = open_store("cpu", "1MiB")
    assert open_store(store) is store
    assert open_store(None) is None
    for others in ({"limit": "2MiB"}, {"folder": "."}):
        with pytest.raises(ConfigError, match="of its own - leave others out"):
            open_store(store, **others)
    store.close()
    with pytest.raises(ConfigError, match="is closed"):
        open_store(store)
