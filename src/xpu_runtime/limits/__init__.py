"""How limits are held: the protocol of the backends (backend.py), and their common parts.

backends/ has one file a backend, registry.py finds them, choose.py takes the strongest, enforce.py puts
limits into force and lifts them, resize.py changes them while containers run (separate_process.py where a
driver can hang). pages.py, usage_page.py, compute.py and usage.py are the pages that the interposers and the
host share; unaccounted.py and unaccounted_time.py find use that only the driver sees. interposers.py and
interposed.py put our libraries in the place of the driver's. per_device.py and mps_*.py have the state of
devices. on_cgroup.py is the common part of backends on a cgroup, folders.py has a grant's folder on the host,
sharing.py shows shares of time, page_faults.py reports a page that cannot be read.
"""
