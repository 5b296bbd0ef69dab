"""`weir up` starts the sender where there is an endpoint, and nothing where there is none."""

from __future__ import annotations

from laptop.programs import webhook_sender
from laptop.stopping import FIRST_TO_LAST
from tests.webhooks.sending import add_endpoint


def test_a_stack_without_endpoints_runs_no_sender(database: str) -> None:
    assert webhook_sender(database) == []


def test_a_stack_with_an_endpoint_runs_a_sender_and_stops_it(database: str) -> None:
    add_endpoint(database, "http://127.0.0.1:1/")
    (program,) = webhook_sender(database)
    assert program.command()[1:] == ["-m", "webhooks"]
    assert program.name in FIRST_TO_LAST[0]
