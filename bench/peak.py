"""Runs a command and appends its maximum resident memory in KiB: peak.py LOG NAME COMMAND..."""

import os
import sys

_, log, name, *command = sys.argv
_, status, usage = os.wait4(os.posix_spawn(command[0], command, os.environ), 0)
with open(log, "a") as file:
    file.write(f"{usage.ru_maxrss} {name}\n")
sys.exit(os.waitstatus_to_exitcode(status))
