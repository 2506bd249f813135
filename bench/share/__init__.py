"""How well limits on compute hold: loads in real containers, judged by the work that they completed.

`python3 -m share --help` (with bench, src and packaging on PYTHONPATH), or `make bench-share`.
Loads are one C program (load/) that knows nothing of limits or simulations. Modules, each of which imports
only those before it: loads and scenarios (what is run), logs and measure (what came of it), node and runs
(containers), table and picture (for people).
"""
