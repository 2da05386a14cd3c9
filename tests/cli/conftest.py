import pytest


@pytest.fixture(autouse=True)
def here(monkeypatch, tmp_path):
    """Each test of the command runs in a folder of its own."""
    monkeypatch.chdir(tmp_path)
