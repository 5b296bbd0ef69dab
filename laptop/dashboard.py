"""How the dashboard of a laptop's stack is started: as the read-only role where the database is the stack's own."""

from __future__ import annotations

import os
import secrets
import sys
from urllib.parse import urlsplit

from laptop.folders import Folders
from laptop.ports import LOOPBACK

READER = "weir_dashboard"
READER_URL_VARIABLE = "WEIR_DASHBOARD_POSTGRES_URL"
"""The reader's address on an outside Postgres, whose roles are not ours to give passwords to."""


def reader_password(folders: Folders) -> str:
    """The password of the embedded database's reader: chosen once."""
    file = folders.database / "reader-password"
    if not file.exists():
        file.touch(mode=0o600)
        file.write_text(secrets.token_urlsafe(24), encoding="ascii")
    return file.read_text(encoding="ascii").strip()


def reader_url(folders: Folders, postgres_url: str, *, is_embedded: bool) -> str:
    """The database's address for the dashboard: never the owner's where that can be helped."""
    if not is_embedded:
        return os.environ.get(READER_URL_VARIABLE, postgres_url)
    place = urlsplit(postgres_url)
    return place._replace(netloc=f"{READER}:{reader_password(folders)}@{place.hostname}:{place.port}").geturl()


def dashboard_command(port: int) -> list[str]:
    """The command line; settings that are the same everywhere are in dashboard/.streamlit/config.toml."""
    settings = {"server.address": LOOPBACK, "server.port": str(port)}
    options = [word for name, value in settings.items() for word in (f"--{name}", value)]
    return [sys.executable, "-m", "dashboard", *options]
