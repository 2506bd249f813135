"""How limits are held: the protocol of the backends (backend.py), and what is common to them.

backends/ has one file a backend, registry.py finds them, choose.py takes the strongest, enforce.py puts
limits into force and lifts them, resize.py changes them while containers run (separate_process.py where a
driver can hang). pages.py, usage_page.py, compute.py and usage.py are the pages that the interposers and the
host share; unaccounted.py and unaccounted_time.py what the driver sees beyond them. interposers.py and
interposed.py put our libraries in the place of the driver's. per_device.py and mps_*.py: what lives per
device. on_cgroup.py is what backends on a cgroup share, folders.py a grant's folder on the host, sharing.py
how a share of time is shown, page_faults.py a page that cannot be read.
"""
