"""The vendors of devices, and the inventory that they fill.

A vendor is a file or folder here (vendor.py says what it brings) and is found by registry.py. discovery.py
asks them all and keeps the answer for starts; inventory.py are its values, nodes.py device numbers, marks.py
which devices are drained or reserved.
"""
