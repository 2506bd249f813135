"""The runtime on a node of a cluster: put there from the container image, and taken away again.

For `xpu kubernetes install-node` and its like, which run as root in a privileged pod that sees the node's
processes, and do their work in the node's own mount namespace (host.py). setup.py has the steps, pod.py
calls them, keeper.py keeps keys in step, tree.py is the installed tree, section.py our part of the node's
config.yaml, removal_timer.py removes the rest when the last container is gone. No container's start imports
this.
"""
