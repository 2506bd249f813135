"""The scheduler extender: kube-scheduler asks it which nodes have room on their devices, and it binds."""
