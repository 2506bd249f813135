"""Kubernetes: all that `xpu kubernetes` has beyond the command line.

Each of its commands calls one of: device_plugin (offers this node's devices to the kubelet), extender
(places pods for kube-scheduler), node_setup (puts the runtime on a node, and takes it away), report and
keys_in_use (what `status` shows). Nothing of it is imported by a container's start, by the agent or by
doctor.
"""
