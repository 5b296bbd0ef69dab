"""Azurite, Microsoft's emulator of Azure Blob Storage, as an npm package: kept outside the repository, like the jars.

The account and its key are those that Microsoft publishes for it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.client import HTTPConnection
from pathlib import Path

from laptop.jars import cache_root
from laptop.ports import LOOPBACK, free_port
from tests.waiting import wait_until

VERSION = "3.37.0"
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
CONTAINER = "metering"
API = "2021-08-06"


def program() -> Path | None:
    """Its server of blobs, installed first when missing; None without npm."""
    npm = shutil.which("npm")
    folder = cache_root() / f"azurite-{VERSION}"
    found = folder / "node_modules/azurite/dist/src/blob/main.js"
    if not found.exists() and npm is not None:
        command = [npm, "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts", "--omit=dev"]
        subprocess.run([*command, "--prefix", str(folder), f"azurite@{VERSION}"], check=True, timeout=300)
    return found if found.exists() else None


@contextmanager
def azurite(server: Path, folder: Path) -> Iterator[str]:
    """The address of a server with an empty container; its data are in `folder`."""
    port = free_port()
    options = ["--location", str(folder), "--blobPort", str(port), "--skipApiVersionCheck", "--silent"]
    with (folder / "azurite.log").open("wb") as log:
        process = subprocess.Popen(["node", str(server), *options], stdout=log, stderr=log)
    try:
        wait_until(lambda: _has_container(port), "Azurite has a container")
        yield f"http://{LOOPBACK}:{port}/{ACCOUNT}"
    finally:
        process.kill()
        process.wait()


def _has_container(port: int) -> bool:
    """Make the container; False while nobody answers."""
    path, date = f"/{ACCOUNT}/{CONTAINER}", formatdate(usegmt=True)
    signed = f"PUT{chr(10) * 12}x-ms-date:{date}\nx-ms-version:{API}\n/{ACCOUNT}{path}\nrestype:container"
    signature = base64.b64encode(hmac.digest(base64.b64decode(KEY), signed.encode(), hashlib.sha256)).decode()
    headers = {
        "x-ms-date": date,
        "x-ms-version": API,
        "Authorization": f"SharedKey {ACCOUNT}:{signature}",
        "Content-Length": "0",
    }
    connection = HTTPConnection(LOOPBACK, port, timeout=5)
    try:
        connection.request("PUT", f"{path}?restype=container", headers=headers)
        status = connection.getresponse().status
    except OSError:
        return False
    finally:
        connection.close()
    assert status in (201, 409), status
    return True
