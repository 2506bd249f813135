"""The launcher starts this with `python -I -S` in an environment of pip's: the shim of that environment."""

import sys

_LIB = __file__.rpartition("/")[0].rpartition("/")[0]
sys.path.insert(0, "{}/python{}.{}/site-packages".format(_LIB, *sys.version_info))

from xpu_runtime.shim import main  # noqa: E402

sys.exit(main(sys.argv[1:]))
