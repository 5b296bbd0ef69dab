"""Ports of a test process of its own: xdist's workers and other test runs on the machine never choose the same."""

from __future__ import annotations

import socket

from laptop.ports import LOOPBACK, SERVER_PORTS

TEST_PORTS = range(10_000, SERVER_PORTS.start)
"""Below those of `weir up`, which a test starts as a process, and far below those of outgoing connections."""

PORTS_OF_A_PROCESS = 200


def claim_ports(among: range = TEST_PORTS) -> tuple[range, socket.socket]:
    """A range of ports that no other process claims while the socket is open, which is bound to the range's first port.

    Raises `RuntimeError` when other processes have claimed all.
    """
    for start in among[::PORTS_OF_A_PROCESS]:
        claim = socket.socket()
        try:
            # Without SO_REUSEADDR: a second process cannot bind it. It ends with the process, however that ends.
            claim.bind((LOOPBACK, start))
        except OSError:
            claim.close()
        else:
            return range(start + 1, start + PORTS_OF_A_PROCESS), claim
    raise RuntimeError(f"Other test processes have claimed all ports from {among.start} to {among.stop - 1}.")
