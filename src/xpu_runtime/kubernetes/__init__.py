"""Kubernetes: the parts of `xpu kubernetes` behind the command line.

Each of its commands calls one of: device_plugin (offers this node's devices to the kubelet), extender (places
pods for kube-scheduler), node_setup (puts the runtime on a node, and takes it away), report and keys_in_use
(the data of `status`). A container's start, the agent and doctor import nothing of it.
"""
