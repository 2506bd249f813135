"""The runtime on a node of a cluster: put there from the container image, and taken away again.

For `xpu kubernetes install-node` and its like, which run as root in a privileged pod that sees the node's
processes, and do their work in the node's own mount namespace. Nothing here is imported by a container's
start.
"""
