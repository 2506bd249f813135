"""The start of a container: its steps in order (sequence.py), and the programs that take them.

mode.py chooses hook mode or spec mode and says why; spec_mode.py does the part before runc, in the shim;
in_container.py the part in the hook. hooks_in_spec.py and config_json.py edit the spec; created.py records
the settings with which a container was created; not_started.py writes the event of a container that did not
start.
"""
