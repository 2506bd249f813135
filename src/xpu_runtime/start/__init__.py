"""The start of a container: its steps in order (sequence.py), and who takes them.

mode.py chooses hook mode or spec mode and says why; spec_mode.py does the part before runc, in the shim;
in_container.py the part in the hook. hooks_in_spec.py and config_json.py edit the spec; created.py remembers
what a container was created with; not_started.py writes down what did not start.
"""
