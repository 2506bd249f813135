"""The kernel's and the C library's services, without a policy.

syscalls.py and library.py call them. rootfs.py holds a hostile root folder by descriptor (undo.py takes back
its own changes there, rootmounts.py knows the container's own mounts), mounts.py mounts into it.
credentials.py is a user namespace's root, mountinfo.py the list of mounts. cgroups.py, device_rule.py,
device_bpf.py and systemd.py: access to devices. proc.py and child.py: processes; deadline.py: calls that may
hang, each in a process with an end. files.py: files and locks (lock_holders.py: the holder of one;
trusted.py: paths that only root can have written); address.py: a service's address; numbers.py: numbers in
sysfs; loader.py, ldcache.py and elf.py: the libraries that a loader would load.
"""
