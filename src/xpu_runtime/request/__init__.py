"""From variables and annotations to a checked request.

source.py finds them in a spec and applies the policy. parse.py is the grammar, units.py its amounts,
require.py XPU_REQUIRE, cdi.py CDI devices. request.py is the result. pod.py, pod_container.py and
assignment.py (signed) are for a pod's container. amounts.py sums the needs of init containers and sidecars.
quotas.py finds the quotas that a container counts to.
"""
