"""Kubernetes: what its resources mean here, the device plugin, and the scheduler extender."""
