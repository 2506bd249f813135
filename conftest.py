"""What all tests share. pytest reads lists of fixtures only at the top of the tree."""

import pytest
from hypothesis import HealthCheck, settings

from xpu_runtime.ledger import waiting

pytest.register_assert_rewrite("support")
# Hypothesis' limits of time are for a machine that does nothing else.
settings.register_profile("xpu", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("xpu")
pytest_plugins = [
    "support.bundles",
    "support.kubernetes_api",
    "support.cgroups",
    "support.costs",
    "support.device_work",
    "support.sharing_time",
    "support.simulation",
    "support.cudart",
    "support.packages",
    "support.parallel",
    "support.tiers",
]


@pytest.fixture(autouse=True)
def _no_wait_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of the product has one limit for all its waits for the ledger. Here many tests share a
    process: the limit that one of them has set, or used up, must not be the next one's."""
    monkeypatch.setattr(waiting, "_left", None)
    monkeypatch.setattr(waiting, "_allowed", 0.0)
