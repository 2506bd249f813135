"""The parts of the OCI runtime specification: command lines, specs, states, bundles.

argv.py reads a command line, spec.py a spec and state.py a state. own_bundle.py stands in for a bundle that
cannot be written, partial_spec.py reads a part of a spec that is too large, engine_name.py reads the engine's
name of a container, build_step.py tells a step of an image's build from a container.
"""
