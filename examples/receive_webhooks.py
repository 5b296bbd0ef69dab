"""Receive webhooks: verify each call, and apply each event once, in SQLite.

WEBHOOK_SECRET=whsec_… python examples/receive_webhooks.py PORT FILE

During a rotation give both secrets, with a space between. Killed anywhere and started again it loses and doubles
nothing: Weir sends an event until it was answered with 2xx, with the same id each time, and FILE knows the ids. Put it
behind a proxy that ends TLS.
"""

import base64
import hmac
import json
import os
import sqlite3
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

SECRETS = [base64.b64decode(secret.removeprefix("whsec_")) for secret in os.environ["WEBHOOK_SECRET"].split()]
TOLERANCE_SECONDS = 300
MAX_BYTES = 1 << 20

database = sqlite3.connect(sys.argv[2])
database.execute("CREATE TABLE IF NOT EXISTS seen (id TEXT PRIMARY KEY)")
database.execute("CREATE TABLE IF NOT EXISTS done (place INTEGER PRIMARY KEY, type TEXT, data TEXT)")


def number(text):
    """The number that a header has; 0 for anything else."""
    return int(text) if text.isdecimal() and len(text) <= 20 else 0


def is_genuine(headers, body):
    """Whether one of the signatures is by one of our secrets, and not old: else anybody could post here."""
    message, timestamp = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    now = time.time()  # noqa: TID251 -- a program of its own
    if abs(now - number(timestamp)) > TOLERANCE_SECONDS:
        return False
    content = f"{message}.{timestamp}.".encode() + body
    wanted = ["v1," + base64.b64encode(hmac.digest(secret, content, "sha256")).decode() for secret in SECRETS]
    given = headers.get("webhook-signature", "").split(" ")
    return any(hmac.compare_digest(a.encode(), b.encode()) for a in wanted for b in given)


class Receiver(BaseHTTPRequestHandler):
    """Answers 204 after the commit, and never before."""

    def do_POST(self):
        """Take an event."""
        length = number(self.headers.get("content-length", ""))
        body = self.rfile.read(length) if length <= MAX_BYTES else b""
        if not is_genuine(self.headers, body):
            self.send_response(401)
            self.end_headers()
            return
        event = json.loads(body)
        with database:  # the id and what it does, or neither
            news = database.execute("INSERT OR IGNORE INTO seen VALUES (?)", [self.headers["webhook-id"]]).rowcount
            if news:
                # Here belongs what you do with it, in this transaction.
                done = [event["type"], json.dumps(event["data"])]
                database.execute("INSERT INTO done (type, data) VALUES (?, ?)", done)
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_):
        """Nothing."""


HTTPServer(("127.0.0.1", int(sys.argv[1])), Receiver).serve_forever()
