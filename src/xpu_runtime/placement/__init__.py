"""What fits on a card: one arithmetic for docker, for the device plugin and for the scheduler extender."""
