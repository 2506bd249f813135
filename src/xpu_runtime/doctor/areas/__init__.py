"""What is looked at: each file here is one area, and is registered by being there.

It defines `ORDER`, its place in the output, and `look(machine)`, which yields findings. It runs in a process
of its own with an end (linux/bounded.py): it may fail or hang without harm. It changes nothing on the node.
"""
