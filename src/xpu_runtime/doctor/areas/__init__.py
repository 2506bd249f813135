"""The areas of `xpu doctor`: each file here is one, and is registered by being there.

It defines `ORDER`, its place in the output, and `look(machine)`, which yields findings. It runs in a process
of its own with a deadline (linux/deadline.py): it may fail or hang without harm. It changes nothing on the
node.
"""
