"""A double of Stripe's HTTP API, as far as invoices and their items go: lists, idempotency keys, and failures to order.

As Stripe's documentation has it: a key that comes again is answered as the first time, with other parameters it is
refused; keys are forgotten after a day; an invoice that is no draft takes no item.
"""

from __future__ import annotations

import json
import threading
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

Item = dict[str, Any]
KEY = "sk_test_weir"
MAX_PAGE = 3
"""Few, so that lists have pages."""


@dataclass
class Stripe:
    """`fails`: called with the number of each request, before it is answered, with what to answer instead of doing it,
    or (after) instead of the answer; None: nothing fails. A status of 0 drops the connection.
    """

    address: str = ""
    invoices: list[Item] = field(default_factory=list)
    items: list[Item] = field(default_factory=list)
    keys: dict[str, tuple[str, Item]] = field(default_factory=dict)
    requests: int = 0
    fails: Callable[[int], tuple[str, int] | None] = lambda _: None

    def forget_keys(self) -> None:
        """A day later."""
        self.keys.clear()

    def post(self, path: str, key: str, body: str) -> tuple[int, Item]:
        """The answer to a request."""
        if key in self.keys:
            before, answer = self.keys[key]
            return (200, answer) if before == f"{path} {body}" else (400, {"error": {"type": "idempotency_error"}})
        given = dict(parse_qsl(body, keep_blank_values=True))
        metadata = {name[9:-1]: given.pop(name) for name in list(given) if name.startswith("metadata[")}
        made: Item = {**given, "metadata": metadata}
        if path == "/invoices":
            made |= {"id": f"in_{len(self.invoices) + 1}", "status": "draft"}
            self.invoices.append(made)
        else:
            (target,) = (invoice for invoice in self.invoices if invoice["id"] == given["invoice"])
            if target["status"] != "draft" or target["currency"] != given["currency"]:
                return 400, {"error": {"type": "invalid_request_error"}}
            made |= {"id": f"ii_{len(self.items) + 1}", "amount": int(given["amount"])}
            self.items.append(made)
        self.keys[key] = (f"{path} {body}", made)
        return 200, made

    def get(self, path: str, given: dict[str, str]) -> Item:
        """A page of a list."""
        listed, by = (self.invoices, "customer") if path == "/invoices" else (self.items, "invoice")
        found = [thing for thing in listed if thing[by] == given[by]]
        if after := given.get("starting_after"):
            found = found[[thing["id"] for thing in found].index(after) + 1 :]
        return {"data": found[:MAX_PAGE], "has_more": len(found) > MAX_PAGE}


@contextmanager
def serving() -> Iterator[Stripe]:
    """One that answers as long as the block lasts."""
    stripe = Stripe()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            place = urlsplit(self.path)
            self._answer(lambda: (200, stripe.get(place.path, dict(parse_qsl(place.query)))))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            self._answer(lambda: stripe.post(self.path, self.headers["Idempotency-Key"], body))

        def _answer(self, do: Callable[[], tuple[int, Item]]) -> None:
            stripe.requests += 1
            failure = stripe.fails(stripe.requests)
            if b64decode(self.headers["Authorization"].split()[1]).decode() != f"{KEY}:":
                failure = ("before", 401)
            status, answer = (0, {}) if failure is not None and failure[0] == "before" else do()
            if failure is not None:
                status, answer = failure[1], {"error": {"type": "api_error"}}
            if status:
                text = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)
            else:
                self.close_connection = True

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    stripe.address = f"http://127.0.0.1:{server.server_port}"
    try:
        yield stripe
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
