"""The configuration: read, checked, and compiled for the start of containers.

document.py reads the YAML and checks it against config/config.schema.json; defaults.py is it as a value;
compile.py and cache.py write the form that a start reads (load.py), since YAML takes too long there.
low_level_runtime.py finds runc or crun, and probe.py asks for its version and features.
"""
