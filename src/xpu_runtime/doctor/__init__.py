"""`xpu doctor`: the problems of this node with their remedies, and the bug report.

areas/ has a file for each subject; examination.py runs them, each in a process with a deadline. Several areas
use machine.py, interpreter.py and docker_flags.py (a dockerd's command line). report.py and bundle.py make
the bug report; redact.py and redacted_spec.py leave out private data.
"""
