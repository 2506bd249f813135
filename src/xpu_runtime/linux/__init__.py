"""What the kernel and the C library offer, without a policy.

syscalls.py and library.py call them. rootfs.py holds a hostile root folder by descriptor (undo.py takes back
what was made there, rootmounts.py knows which mounts are its own), mounts.py mounts into it. credentials.py
is a user namespace's root, mountinfo.py the list of mounts. cgroups.py, device_rule.py and device_bpf.py:
who may open a device. proc.py and child.py: processes; bounded.py: calls that may hang, each in a process
with an end. files.py: files and locks (holders.py: who has one; trusted.py: paths that only root can have
written); address.py: where a service listens; numbers.py: numbers in sysfs; loader.py, ldcache.py and
elf.py: what a loader would load.
"""
