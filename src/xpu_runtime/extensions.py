"""Extensions: the backends, engines and areas of doctor. Each is a module in its kind's folder, and is
registered by being there.

The names are read from the folder, so that asking for them imports no backend and no engine; one is imported
when it is used. Each such folder says which names its modules must define (limits/backend.py,
engines/__init__.py).
"""

from __future__ import annotations

import os

#: Other values of XPU_ENFORCE, which no backend can have as its name.
NO_BACKEND = ("auto", "hard", "none")


def names(folder: str) -> tuple[str, ...]:
    """The modules and packages in `folder` (such as "limits/backends"), in the order of their names."""
    top = os.path.join(os.path.dirname(__file__), folder)
    modules = {name.removesuffix(".py") for name in os.listdir(top) if _is_module(top, name)}
    return tuple(sorted(modules))


def _is_module(folder: str, name: str) -> bool:
    """Whether Python could import it by name: editors, tar and people leave other files beside modules."""
    if name.startswith("_"):
        return False
    if name.endswith(".py"):
        return name[:-3].isidentifier()
    return name.isidentifier() and os.path.exists(os.path.join(folder, name, "__init__.py"))


def backends() -> tuple[str, ...]:
    """The names of the backends that can hold limits, which XPU_ENFORCE may name."""
    return tuple(name for name in names("limits/backends") if name not in NO_BACKEND)
