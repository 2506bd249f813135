"""The scheduler extender: kube-scheduler asks it which nodes have room on their devices, and it binds pods.

service.py answers HTTP (http_server.py at the top), with certificate.py. verbs.py decides filter, prioritize,
preempt and bind, by cluster.py (the state with its lock; state.py, fed by informer.py), where accounting.py
counts pods' shares, devices.py reads a node's devices, objects.py has the values, verdicts.py the cached
results. reasons.py explains, preemption.py finds pods that would have to end, in_flight.py and groups.py hold
places, binding.py signs the assignment (keys.py). leader_election.py elects the replica that decides, and
forwarding.py passes the others' requests on to it.
"""
