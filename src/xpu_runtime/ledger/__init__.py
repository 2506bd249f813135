"""The record of who holds what on this node, and the choice of devices."""
