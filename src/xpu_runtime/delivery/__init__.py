"""Makes a grant usable in its container: the plan, and the two ways to carry it out.

plan.py says which nodes, files and links, and where in this image; operations.py are its steps as values.
container.py carries it out from the hook, in_root.py does links and the loader's cache. spec.py writes device
rules into the spec, and everything where there is no mount namespace. contribution.py is what a backend adds.
build_step_files.py removes from an image the files that a build's step was given.
"""
