"""Free TCP ports on this machine, remembered so that a restart keeps its addresses."""

from __future__ import annotations

import random
import socket
from contextlib import suppress
from pathlib import Path

from local.errors import CannotRun

LOOPBACK = "127.0.0.1"
SERVER_PORTS = range(20_000, 32_000)
"""Below those the system gives to outgoing connections: a server that restarts finds its port still free."""


def free_port() -> int:
    """A port on the loopback address that nobody listens on now. Raises `CannotRun` when there is none."""
    for port in random.sample(SERVER_PORTS, len(SERVER_PORTS)):
        if is_free(port):
            return port
    raise CannotRun(f"No port from {SERVER_PORTS.start} to {SERVER_PORTS.stop - 1} is free on {LOOPBACK}.")


def is_free(port: int) -> bool:
    """Whether a server could listen on the port now."""
    with socket.socket() as probe:
        # As servers do: a connection that is still winding down does not keep the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def kept_port(file: Path) -> int:
    """The port noted in `file` while it is free, else a new one, which is noted there."""
    with suppress(OSError, ValueError):
        port = int(file.read_text(encoding="ascii"))
        if 0 < port < 65_536 and is_free(port):
            return port
    port = free_port()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{port}\n", encoding="ascii")
    return port
