"""Process-wide settings of C libraries."""

import ctypes
import threading

import pytest
import torch

from rksc_tot.engine.model.process_tuning import idle_threads, keep_freed_memory


def test_freed_memory_is_kept_if_the_c_library_supports_it(monkeypatch):
    asked = []

    class Library:
        @staticmethod
        def mallopt(*setting):
            asked.append(setting)

    monkeypatch.setattr(ctypes, "CDLL", lambda _: Library)
    keep_freed_memory()
    assert len(asked) == 2
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())  # another library
    keep_freed_memory()


def helpers():
    """All threads of this process, also those that Python did not start."""
    from pathlib import Path

    return len(list(Path("/proc/self/task").iterdir()))


def test_idle_openmp_threads_end_and_computation_continues():
    if idle_threads()() != 0:
        pytest.skip("torch has no GNU OpenMP here")
    before, threads = {}, torch.get_num_threads()

    def compute():
        torch.set_num_threads(2)
        wanted = torch.ones(1 << 20).sin().sum()
        before["with"] = helpers()
        idle_threads()()
        before["without"] = helpers()
        assert torch.equal(torch.ones(1 << 20).sin().sum(), wanted)

    worker = threading.Thread(target=compute)
    try:
        worker.start()
        worker.join()
    finally:
        torch.set_num_threads(threads)
    assert before["without"] < before["with"]
