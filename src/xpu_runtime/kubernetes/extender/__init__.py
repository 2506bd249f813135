"""The scheduler extender: kube-scheduler asks it which nodes have room on their devices, and it binds pods.

service.py answers HTTP (http_server.py at the top), with certificate.py. verbs.py decides filter, prioritize,
preempt and bind, by cluster.py (the state with its lock; state.py, fed by following.py), where accounting.py
says what pods hold, devices.py what a node has, objects.py what pods and nodes are, verdicts.py what was
found out before. reasons.py explains, preemption.py says which pods would have to end, in_flight.py and
groups.py hold places, binding.py signs the assignment (keys.py). leading.py and passing_on.py: which replica
decides.
"""
