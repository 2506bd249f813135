"""The device plugin: what the node has, told to the kubelet, and booked for the pods of the node.

plugin.py has the threads. offering.py looks each second at what may be offered, offer.py counts it (pure),
from the devices (cards.py) and the ledger (shared_ledger.py, one thread at a time). kubelet.py registers,
allocated_ids.py reads PodResources; server.py and calls.py answer the kubelet, in the messages of v1beta1.py
and wire.py. pods.py follows the node's pods (pod.py: one as it is in the API) and books for each; reports.py
and node.py write events, labels and the node's annotation. driver.py asks drivers, in a process of its own.
"""
