import pytest

from rksc_tot.evaluation.arborkv.fit import Feature, Fitted
from rksc_tot.policies.compression.arborkv_fit import ArborFit


@pytest.fixture(scope="session")
def found():
    """A fit for the embedded model, made up; the tests of the function make a real one."""
    from rksc_tot import load_engine
    from rksc_tot.search.approximate.fingerprint import weights_of

    with load_engine() as engine:
        weights = weights_of(engine)
    fit = ArborFit(
        model="embedded", weights=weights, layers=8, task="game24", seed=2, date="2026-01-01", problems=4,
        samples=48, changed=17, separation=0.7123, theta=(1.25, -2.5, 3.75), offset=0.5,
    )  # fmt: skip
    features = [
        Feature("search value", 1.25, 0.5, -0.5, 0.8),
        Feature("boundary entropy", -2.5, 0.25, 0.75, None),
        Feature("attention", 3.75, 0.125, 0.0625, 0.6),
    ]
    return Fitted(fit, (0.6, 0.9), features)
