"""The launcher starts this with `python3 -I -S`: the shim, from the package beside this file."""

import gc
import sys

# A process of 20 ms leaves no garbage worth collecting.
gc.disable()
sys.path.insert(0, __file__.rpartition("/")[0] + "/python")

try:
    import xpu_bundle

    xpu_bundle.install()

    from xpu_runtime.shim import main
except (ImportError, OSError, SyntaxError) as error:
    sys.exit(
        f"xpu: xpu-container-runtime cannot be started ({error}): if it is being installed now, start the "
        "container again; otherwise install xpu-container-runtime again"
    )

sys.exit(main(sys.argv[1:]))
