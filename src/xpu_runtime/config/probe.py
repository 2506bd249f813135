"""Asks a low-level runtime for its name, and for its version of the OCI runtime-spec.

Done once for each program; `low_level_runtime` keeps the answer. Does not use `subprocess`, which is slow to
import, as the first container after an update of the program waits for this. Trusts no output: time and
length are bounded.
"""

from __future__ import annotations

import os
import select
import time

_PATIENCE_SECONDS = 5.0
_LONGEST_ANSWER = 16 * 1024
_SIGKILL = 9  # the signal module imports enum, functools and more


def knows_create_runtime(text: str) -> bool:
    """Whether the runtime that prints `text` runs createRuntime hooks, which came with runtime-spec 1.0.2.

    False if it does not say: it then gets prestart hooks, which all runtimes support.
    """
    return spec_version(text) >= (1, 0, 2)


def program_name(text: str) -> str:
    """The name that the runtime has by itself: the first word that `--version` prints; "" if none.

    `runc version 1.1.5`, `crun version 1.8.1`, `runsc version release-20240807.0`, `kata-runtime  : 3.2.0`.
    """
    words = text.partition("\n")[0].split()
    return words[0].lower() if words else ""


def spec_version(text: str) -> tuple[int, int, int]:
    """The runtime-spec version in the output of `runc --version`, as numbers; (0, 0, 0) if none.

    `spec: 1.0.2-dev` is (1, 0, 2): the hooks were in runc before the specification was released.
    """
    for line in text.splitlines():
        word, colon, rest = line.partition(":")
        if word.strip() != "spec" or not colon:
            continue
        numbers = rest.strip().replace("+", "-").partition("-")[0].split(".")
        if len(numbers) == 3 and all(each.isascii() and each.isdigit() and len(each) < 6 for each in numbers):
            return int(numbers[0]), int(numbers[1]), int(numbers[2])
    return 0, 0, 0


def version_text(path: str) -> str:
    """The output of `path --version`; "" if it cannot be started, fails, or does not end in time."""
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    try:
        child = os.posix_spawn(
            path,
            [os.path.basename(path), "--version"],
            {"LC_ALL": "C"},
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, write_end, 1),
                (os.POSIX_SPAWN_OPEN, 2, "/dev/null", os.O_WRONLY, 0),
            ],
        )
    except OSError:
        os.close(read_end)
        return ""
    finally:
        os.close(write_end)
    text = b""
    try:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while len(text) < _LONGEST_ANSWER:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([read_end], [], [], left)[0]:
                break
            piece = os.read(read_end, _LONGEST_ANSWER)
            if not piece:
                return text.decode("utf-8", "replace") if _succeeded(child) else ""
            text += piece
        os.kill(child, _SIGKILL)
        _succeeded(child)
        return ""
    finally:
        os.close(read_end)


def _succeeded(child: int) -> bool:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
