"""The benchmarks' tests use simulated cards as the others do."""

from sim.conftest import native, run_dir, up  # noqa: F401  (fixtures)
