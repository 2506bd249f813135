"""Where packages by others are found when Python runs without site-packages, as the shim and the hook do.

The copies that `make install` installs come last in the path: packages of Python itself are preferred. This
module does not know their names.
"""

from __future__ import annotations

import sys

from xpu_runtime import paths


def enable() -> None:
    """Lets the imports that follow find our copies."""
    if paths.THIRD_PARTY_DIR not in sys.path:
        sys.path.append(paths.THIRD_PARTY_DIR)
