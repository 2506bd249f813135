"""What fits on a card: one arithmetic for docker, for the device plugin and for the scheduler extender.

card_capacity.py says what is left of a card and which card a policy takes first; cards.py places one
container, pod.py all containers of a pod, in plain numbers. container.py chooses slices for a request, of
what available.py says; nearest.py finds the nearest request that fits, refused.py and marks.py say why not.
demand.py is what a pod's containers ask for, allocation.py what its pod has, resizing.py a slice that is to
change.
"""
