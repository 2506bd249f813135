"""`xpu agent` starts this with `python3 -I -S`: the start workers, from the package beside this file."""

import sys

sys.path.insert(0, __file__.rpartition("/")[0] + "/python")

import xpu_bundle

xpu_bundle.install()

from xpu_runtime.worker import main  # noqa: E402

sys.exit(main(sys.argv[1:]))
