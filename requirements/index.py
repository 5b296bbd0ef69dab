"""The package index that pip uses here, said in uv's own variables: uv does not read pip's settings."""

from __future__ import annotations

import os
import subprocess
import sys

VARIABLES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "cert": "SSL_CERT_FILE",
}
"""pip's setting → the variable by which uv takes the same."""


def uv_environment() -> dict[str, str]:
    """This process' environment, and what pip's configuration (files and PIP_ variables) adds to it for uv."""
    environment = {**os.environ, "UV_NATIVE_TLS": "true"}
    for setting, variable in VARIABLES.items():
        if variable not in environment and (value := _setting(setting)):
            environment[variable] = value
    return environment


def _setting(name: str) -> str:
    """What pip's configuration gives for an option: a PIP_ variable wins over its files; "" where nothing does."""
    variable = os.environ.get("PIP_" + name.upper().replace("-", "_"))
    if variable:
        return variable
    command = [sys.executable, "-m", "pip", "config", "get", f"global.{name}"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    return answer.stdout.strip() if answer.returncode == 0 else ""
