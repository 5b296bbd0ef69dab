"""Free TCP ports on this machine, remembered so that a restart keeps its addresses."""

from __future__ import annotations

import random
import socket
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from deployment.errors import CannotRun

LOOPBACK = "127.0.0.1"
SERVER_PORTS = range(20_000, 32_000)
"""Below those the system gives to outgoing connections: a server that restarts finds its port still free."""

server_ports = SERVER_PORTS
"""Among which this process chooses."""
_chosen_at: dict[int, int] = {}
"""When this process chose a port: its server may not listen yet."""


def free_port(besides: Collection[int] = (), among: range | None = None) -> int:
    """A free port on the loopback address, other than `besides`, which are about to be used. Default: `server_ports`.

    Of these a process chooses the one that it chose longest ago. Raises `CannotRun` when there is none.
    """
    among = server_ports if among is None else among
    for port in sorted(random.sample(among, len(among)), key=lambda port: _chosen_at.get(port, 0)):
        if port not in besides and is_free(port):
            _chosen_at[port] = max(_chosen_at.values(), default=0) + 1
            return port
    raise CannotRun(f"No port from {among.start} to {among.stop - 1} is free on {LOOPBACK}.")


def free_ports(number: int, among: range | None = None) -> list[int]:
    """So many different free ports."""
    ports: list[int] = []
    for _ in range(number):
        ports.append(free_port(ports, among))
    return ports


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


def reuse_port(file: Path, among: range | None = None) -> int:
    """The port noted in `file` while it is free, else a new one, which is noted there.

    Files in one folder never note the same port: their servers are started only after all have been chosen.
    """
    others = {port for other in file.parent.glob("*") if other != file and (port := _noted(other)) is not None}
    port = _noted(file)
    if port is not None and port not in others and is_free(port):
        return port
    port = free_port(others, among)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{port}\n", encoding="ascii")
    return port


def _noted(file: Path) -> int | None:
    with suppress(OSError, ValueError):
        port = int(file.read_text(encoding="ascii"))
        return port if 0 < port < 65_536 else None
    return None
