"""`python -m tests.streaming.store_server PORT`: an S3 store.

With `--forgetful` it cannot fence; with `--denying` it makes one commit of a Delta table and says that it could not;
with `--tls FILE` it shows the certificate in FILE (PEM, with its key). With the variable INITIAL_NO_AUTH_ACTION_COUNT
it checks the key and the signature of every request but so many.

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


class Denying(DomainDispatcherApplication):
    """Makes the commits of table version 3, and answers the first time that it could not."""

    denied = False

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        """Answer one request."""
        is_commit = environ["REQUEST_METHOD"] == "PUT" and environ["PATH_INFO"].endswith(f"_delta_log/{3:020d}.json")
        if is_commit and not self.denied:
            self.denied = True
            b"".join(super().__call__(environ, lambda *_: None))
            start_response("503 Service Unavailable", [("Content-Length", "0")])
            return [b""]
        answer: Iterable[bytes] = super().__call__(environ, start_response)
        return answer


APPLICATIONS = {"--forgetful": Forgetful, "--denying": Denying}

if __name__ == "__main__":
    port, *options = sys.argv[1:]
    application = APPLICATIONS.get(options[0], DomainDispatcherApplication) if options else DomainDispatcherApplication
    certificate = (options[1], options[1]) if options and options[0] == "--tls" else None
    run_simple(LOOPBACK, int(port), application(create_backend_app), threaded=True, ssl_context=certificate)
