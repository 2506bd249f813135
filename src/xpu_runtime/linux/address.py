"""Where a service listens: ADDRESS:PORT as people write it, and a socket there."""

from __future__ import annotations

import socket


def parsed(text: str) -> tuple[str, int]:
    """Address and port of `text`, such as 0.0.0.0:8443 or [::]:8443; ValueError."""
    address, _, port = text.rpartition(":")
    if not address or not port.isdigit() or int(port) >= 1 << 16:
        raise ValueError(f"{text!r} is not an address with a port")
    return address.strip("[]"), int(port)


def bound(address: str, port: int) -> socket.socket:
    """A socket of that address, which does not listen yet; OSError, with ADDRESS:PORT as its file, where it
    cannot be had."""
    found = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((address, port))
        return found
    except OSError as error:
        found.close()
        where = f"[{address}]" if ":" in address else address
        raise OSError(error.errno, error.strerror or str(error), f"{where}:{port}") from None
