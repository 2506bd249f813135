"""The device plugin: what the node has, told to the kubelet, and reserved for the pods of the node."""
