"""The file of the offload store: private, never too long, gone with the process; damaged records are refused."""

import gc
import io
import logging
import os
import signal
import stat
import subprocess
import sys
import tempfile
import textwrap
from functools import partial
from pathlib import Path

import pytest

from rksc_tot.cache.offload.disk import SpillFile
from rksc_tot.cache.offload.open_store import open_store
from rksc_tot.cache.offload.records import Records
from rksc_tot.cache.offload.store import OffloadStore
from tests.cache.offload.arenas import PLAIN, UNLIKE, content, filled, same, size_of
from tests.patience import PATIENCE

SIZE = size_of(PLAIN)
HERE = Path(__file__).parents[3]

linux = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="finds the file by /proc")


def files_in(folder):
    """Descriptors of this process on files in ``folder``, names or none."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue
        if target.startswith(f"{folder}/"):
            found.append(int(number))
    return found


@pytest.fixture
def warnings(caplog):
    with caplog.at_level(logging.WARNING, logger="rksc_tot"):
        yield lambda: [record.getMessage() for record in caplog.records]


@pytest.fixture
def store(tmp_path):
    store = open_store("disk", 20 * SIZE, tmp_path)
    yield store
    store.close()


def garble(descriptor, row, record=SIZE):
    """Turn one bit of a row."""
    at = row * record + record // 2
    (byte,) = os.pread(descriptor, 1, at)
    os.pwrite(descriptor, bytes([byte ^ 4]), at)


# -- the file ----------------------------------------------------------------------------------------------------------


@linux
def test_the_file_is_private_and_has_no_name(store, tmp_path):
    store.offload(filled(PLAIN), [1])
    (descriptor,) = files_in(tmp_path)
    state = os.fstat(descriptor)
    assert os.listdir(tmp_path) == []
    assert (state.st_nlink, stat.S_IMODE(state.st_mode), state.st_uid) == (0, 0o600, os.geteuid())
    assert not os.get_inheritable(descriptor)


@linux
def test_there_is_no_file_before_the_first_token_nor_after_closing(store, tmp_path):
    assert files_in(tmp_path) == []
    store.offload(filled(PLAIN), [1])
    assert len(files_in(tmp_path)) == 1
    place = store._place  # so that it is not closed by being forgotten
    store.close()
    assert place is not None
    assert files_in(tmp_path) == []


@linux
def test_an_unreferenced_store_leaves_no_file_open(tmp_path):
    store = open_store("disk", "1MiB", tmp_path)
    store.offload(filled(PLAIN), [1])
    del store
    gc.collect()
    assert files_in(tmp_path) == []


@linux
def test_the_file_is_never_longer_than_the_limit_and_no_longer_than_it_must_be(store, tmp_path):
    arena, longest = filled(PLAIN), 0
    entries = []
    for count in [7, 2, 9, 1, 1, 13, 20, 3, 5, 5]:
        entries.append(store.offload(arena, range(count)))
        (descriptor,) = files_in(tmp_path)
        longest = max(longest, os.fstat(descriptor).st_size)
        assert store.bytes <= longest <= store.limit
    for entry in entries:
        entry.drop()
    store.offload(arena, range(2))
    assert os.fstat(descriptor).st_size == longest == 20 * SIZE


@linux
def test_a_process_that_is_killed_leaves_nothing_behind(tmp_path):
    program = """
        import sys
        from rksc_tot.cache.offload.open_store import open_store
        from tests.cache.offload.arenas import PLAIN, filled
        from tests.cache.offload.test_disk import files_in
        store = open_store("disk", "1MiB", sys.argv[1])
        assert not store.offload(filled(PLAIN), range(40)).gone
        print(len(files_in(sys.argv[1])), flush=True)
        sys.stdin.read()
    """
    arguments = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)]
    with subprocess.Popen(arguments, cwd=HERE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "1\n"
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert child.returncode == -signal.SIGKILL
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="the system cannot be asked to read ahead")
def test_prefetching_reads_ahead_and_a_system_that_refuses_is_no_error(store, monkeypatch):
    def advise(descriptor, at, length, advice):
        asked.append((at // SIZE, length // SIZE, advice))
        raise OSError(22, "Invalid argument")

    asked = []
    monkeypatch.setattr(os, "posix_fadvise", advise)
    arena = filled(PLAIN)
    first, middle, last = (store.offload(arena, range(count)) for count in (3, 14, 3))
    first.drop()
    last.drop()
    parts = store.offload(arena, range(6))
    store.prefetch(middle)
    store.prefetch(parts)
    assert asked == [(at, length, os.POSIX_FADV_WILLNEED) for at, length in ((3, 14), (0, 3), (17, 3))]


# -- what is damaged ---------------------------------------------------------------------------------------------------


@linux
@pytest.mark.parametrize("shapes", [PLAIN, UNLIKE], ids=["plain", "unlike"])
def test_one_flipped_bit_is_noticed_and_nothing_of_its_run_is_copied(shapes, tmp_path, warnings):
    arena = filled(shapes)
    record = Records.of(arena).size
    store = open_store("disk", "1MiB", tmp_path)
    bits, untouched = content(arena, range(6)), content(arena, range(30, 36))
    entry = store.offload(arena, range(6))
    garble(*files_in(tmp_path), 3, record)
    assert not store.restore(entry, arena, range(30, 36))
    assert same(content(arena, range(30, 36)), untouched)
    assert entry.gone
    assert store.refused_tokens == 6
    (sentence,) = warnings()
    assert "lost KV" in sentence
    assert "not hold what was written" in sentence
    again = store.offload(arena, range(6))  # into the same rows
    assert store.restore(again, arena, range(30, 36))
    assert same(content(arena, range(30, 36)), bits)
    assert store.failed is None
    store.check_integrity()
    store.close()


@linux
def test_of_a_split_record_only_the_damaged_part_is_lost(store, tmp_path, warnings):
    arena = filled(PLAIN)
    head, tail = store.offload(arena, range(6)).split(3)
    garble(*files_in(tmp_path), 2)
    garble(*files_in(tmp_path), 3)
    garble(*files_in(tmp_path), 3)  # whole again
    assert not store.restore(head, arena, range(30, 33))
    assert store.restore(tail, arena, range(30, 33))
    assert same(content(arena, range(30, 33)), content(arena, range(3, 6)))
    assert store.refused_tokens == 3
    assert len(warnings()) == 1


@linux
def test_after_damage_each_slot_holds_its_old_kv_or_the_right_kv(tmp_path):
    class TwoAtATime(SpillFile):
        BUFFER = 2 * SIZE

    arena = filled(PLAIN)
    store = OffloadStore("disk", 1 << 20, partial(TwoAtATime, folder=tmp_path))
    entry = store.offload(arena, range(6))
    garble(*files_in(tmp_path), 3)
    before = content(arena, range(30, 36))
    assert not store.restore(entry, arena, range(30, 36))
    should, found = content(arena, range(6)), content(arena, range(30, 36))
    assert same([bits[:, :2] for bits in found], [bits[:, :2] for bits in should])
    assert same([bits[:, 2:] for bits in found], [bits[:, 2:] for bits in before])
    store.close()


@linux
def test_two_swapped_records_are_noticed(store, tmp_path):
    arena = filled(PLAIN)
    entry = store.offload(arena, range(2))
    (descriptor,) = files_in(tmp_path)
    first, second = os.pread(descriptor, SIZE, 0), os.pread(descriptor, SIZE, SIZE)
    os.pwrite(descriptor, second + first, 0)
    assert not store.restore(entry, arena, range(2))


@linux
@pytest.mark.parametrize("left", [0, SIZE // 2, 4 * SIZE - 1])
def test_a_file_cut_short_ends_no_process_and_its_rest_is_restored(left, store, tmp_path, warnings):
    arena = filled(PLAIN)
    first, second, third = store.offload(arena, [0, 1]), store.offload(arena, [2, 3]), store.offload(arena, [4])
    bits = content(arena, [0, 1])
    os.ftruncate(*files_in(tmp_path), left)
    store.prefetch(third)
    assert store.restore(first, arena, [30, 31]) == (left > 2 * SIZE)
    assert not store.restore(second, arena, [32, 33])
    assert not store.restore(third, arena, [34])
    assert first.gone or same(content(arena, [30, 31]), bits)
    assert store.refused_tokens == 5 - 2 * (left > 2 * SIZE)
    assert "ends too early" in "".join(warnings())
    assert len(warnings()) == 1
    again = store.offload(arena, [0, 1, 2])
    assert store.restore(again, arena, [32, 33, 34])


def test_a_sector_that_cannot_be_read_is_computed_again(store, monkeypatch, warnings):
    arena = filled(PLAIN)
    entry = store.offload(arena, [0, 1])

    class Broken(io.BytesIO):
        def readinto(self, buffer):
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(store._place, "_file", Broken())
    assert not store.restore(entry, arena, [2, 3])
    assert warnings() == ["offload to disk lost KV, which is computed again; more may follow: Input/output error"]


# -- a disk that is full, a folder that cannot be written ------------------------------------------------------------------


def test_an_unwritable_folder_stops_the_store_once_and_loses_nothing(tmp_path, warnings):
    folder = tmp_path / "read only"
    folder.mkdir(mode=0o500)
    store, arena = open_store("disk", "1MiB", folder), filled(PLAIN)
    root = os.geteuid() == 0  # whom no mode stops
    if root:
        os.seteuid(65534)
    try:
        assert [store.offload(arena, [n]) for n in range(3)] == [None] * 3
    finally:
        if root:
            os.seteuid(0)
    (sentence,) = warnings()
    assert sentence.endswith(f"is computed again: Permission denied, in the folder {str(folder)!r}")
    assert store.failed == f"Permission denied, in the folder {str(folder)!r}"
    store.check_integrity()
    store.close()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no device that is always full")
def test_a_full_disk_stops_the_store_once(store, monkeypatch, warnings):
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **settings: io.FileIO("/dev/full", "r+"))
    arena = filled(PLAIN)
    assert [store.offload(arena, [n]) for n in range(3)] == [None] * 3
    assert store.bytes == 0
    assert warnings() == ["offload to disk stopped, KV evicted from now on is computed again: No space left on device"]


@pytest.mark.skipif(sys.platform != "linux", reason="limits the size of files")
def test_a_disk_that_fills_up_keeps_earlier_records(tmp_path):
    """The file may grow to 6.5 records: a run is written in part before the error comes, so it must not be believed."""
    program = """
        import resource, sys
        from rksc_tot.cache.offload.open_store import open_store
        from tests.cache.offload.arenas import PLAIN, content, filled, same, size_of
        most = size_of(PLAIN) * 13 // 2
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        arena = filled(PLAIN)
        store = open_store("disk", "1MiB", sys.argv[1])
        held = {entry: content(arena, slots) for slots in ([1, 2], [3, 4, 5]) if (entry := store.offload(arena, slots))}
        assert [store.offload(arena, [6, 7, 8]), store.offload(arena, [9])] == [None, None]
        assert store.bytes == 5 * size_of(PLAIN)
        for entry, bits in held.items():
            assert store.restore(entry, arena, range(20, 20 + entry.tokens))
            assert same(content(arena, range(20, 20 + entry.tokens)), bits)
        assert len(held) == 2
        next(iter(held)).drop()
        assert store.offload(arena, [1]) is None
        store.check_integrity()
    """
    arguments = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)]
    done = subprocess.run(arguments, cwd=HERE, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("offload to disk stopped") == 1
    assert "File too large" in done.stderr
