"""The fixtures that tests in several folders share: pytest reads such a list only at the top of the tree."""

import pytest

pytest.register_assert_rewrite("support")
pytest_plugins = [
    "support.bundles",
    "support.kubernetes_api",
    "support.cgroups",
    "support.device_work",
    "support.sharing_time",
    "support.simulation",
    "support.cudart",
    "support.packages",
    "support.parallel",
]
