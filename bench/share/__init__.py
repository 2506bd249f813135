"""How well limits on compute hold: loads in real containers, judged by their completed work.

`python3 -m share --help` (with bench, src and packaging on PYTHONPATH), or `make bench-share`.
Loads are one C program (load/) that knows nothing of limits or simulations. A module imports only those
before it: loads and scenarios (the work), logs and measure (the results), node and runs (containers), table
and picture (for people).
"""
