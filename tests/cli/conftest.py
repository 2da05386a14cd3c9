import pytest


@pytest.fixture(autouse=True)
def here(monkeypatch, tmp_path):
    """Each test of the command runs in a folder of its own."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def played(monkeypatch):
    """Commands open an engine without a model that plays Game of 24."""
    from tests.game24_player import player

    monkeypatch.setattr("rksc_tot.cli.engine.open_engine", lambda *_: player())


@pytest.fixture
def no_model(monkeypatch):
    """No engine may be opened."""
    monkeypatch.setattr("rksc_tot.cli.engine.open_engine", lambda *_: pytest.fail("loaded"))
