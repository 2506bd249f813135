"""native/launcher/hook.c starts this with `python3 -I -S` if no start worker answers: the hook in Python,
from the package beside this file."""

import gc
import os
import sys

# A process of 20 ms leaves no garbage worth collecting.
gc.disable()
sys.path.insert(0, __file__.rpartition("/")[0] + "/python")

try:
    import xpu_bundle

    xpu_bundle.install()

    from xpu_runtime.hook import main
except (ImportError, OSError, SyntaxError) as error:
    # The low-level runtime shows stderr. A traceback says what is missing, but not what to do.
    sys.exit(
        f"xpu: the hook of xpu-container-runtime cannot be started ({error}): if it is being installed now, "
        "start the container again; otherwise install xpu-container-runtime again"
    )

# Nothing is buffered, and an orderly exit of the interpreter takes 3 ms.
os._exit(main(sys.argv[1:]))
