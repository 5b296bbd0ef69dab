"""`python -m tests.streaming.store_server PORT`: an S3 store; with `--forgetful` one that cannot fence.

Not in the test's process: delta-rs keeps Python's lock during some of its requests, and nobody would answer them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple

from laptop.ports import LOOPBACK


class Forgetful(DomainDispatcherApplication):
    """Takes a conditional put as a plain one, as old stores do."""

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        """Answer one request."""
        environ.pop("HTTP_IF_NONE_MATCH", None)
        answer: Iterable[bytes] = super().__call__(environ, start_response)
        return answer


if __name__ == "__main__":
    application = Forgetful if "--forgetful" in sys.argv else DomainDispatcherApplication
    run_simple(LOOPBACK, int(sys.argv[1]), application(create_backend_app), threaded=True)
