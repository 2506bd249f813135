"""What the OCI runtime specification defines: command lines, specs, states, bundles.

argv.py reads a command line, spec.py a spec and state.py a state. own_bundle.py stands in for a bundle that
cannot be written, outline.py leaves values out of a spec, engine_name.py reads what an engine calls a
container, build_step.py tells a step of an image's build from a container.
"""
