"""Who runs a command."""

from __future__ import annotations

import getpass
import os
import socket


def who() -> str:
    """The operating system's user, and the machine."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        # A pod's user has a number, and perhaps no name.
        name = f"user {os.getuid()}"
    return f"{name}@{socket.gethostname()}"
