"""The API may open as many files as it has connections, whatever it is started with."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from api.slow_clients import MAX_CONNECTIONS, OPEN_FILES

SERVED = """
import resource, socket
import uvicorn
from api import server

_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
server.services_of = server.application = lambda *_: None
uvicorn.run = lambda *_, **__: print(len([socket.socket() for _ in range(server.MAX_CONNECTIONS)]))
server.serve({}, "127.0.0.1", 0, "test")
"""


def test_a_process_that_may_open_few_files_takes_all_connections() -> None:
    """Where the next client cannot connect, none that waits ends for it: who opens 1,024 shuts all others out."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY and hard < OPEN_FILES:
        pytest.skip("this machine allows no process so many files")
    done = subprocess.run([sys.executable, "-c", SERVED], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, str(MAX_CONNECTIONS)), done.stderr
