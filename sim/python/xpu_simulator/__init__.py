"""The simulator's own Python: reads topologies, makes a driver root, starts and ends the daemon.

For `xpu sim`, the one part of the product that knows it, and for tests. It uses the product's helpers, but
nothing that is tried on simulated devices: no ledger, no plan, no limits.
"""
