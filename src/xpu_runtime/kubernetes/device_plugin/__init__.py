"""The device plugin: offers the node's devices to the kubelet, and books them for the node's pods.

plugin.py has the threads. offering.py computes the offer each second, offer.py counts it (pure), from the
devices (cards.py) and the ledger (shared_ledger.py, one thread at a time). kubelet.py registers,
allocated_ids.py reads PodResources; server.py and calls.py answer the kubelet, in the messages of v1beta1.py
and wire.py. pods.py follows the node's pods (pod.py: one as it is in the API) and books for each; reports.py
and node.py write events, labels and the node's annotation. driver.py asks drivers, in a process of its own.
"""
