"""The simulator's Python: reads topologies, makes a driver root, starts and ends the daemon.

It serves `xpu sim`, the one part of the product that knows it, and tests. It uses the product's functions for
files and processes, but nothing that is tested on simulated devices: no ledger, no plan, no limits.
"""
