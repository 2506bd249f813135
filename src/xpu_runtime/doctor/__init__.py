"""`xpu doctor`: what is missing or wrong on this node, and what to do about it; and the bug report.

areas/ has a file for each thing that is looked at; examination.py runs them, each in a process that is ended
after its time. machine.py, interpreter.py, release.py and docker_flags.py (a dockerd's command line) are
what several look at. report.py and bundle.py make the bug report, redact.py and outline.py leave out what is
private.
"""
