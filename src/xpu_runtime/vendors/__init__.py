"""The vendors of devices, and the inventory that they fill.

A vendor is a file or folder here (vendor.py is its protocol), found by registry.py. discovery.py asks all of
them and keeps the answer for starts; inventory.py has its values, nodes.py device numbers, marks.py the
drained and reserved devices, cdi_file.py the file that names them to engines.
"""
