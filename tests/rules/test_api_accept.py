"""Which of two forms of an answer a client gets, by its `Accept`."""

from __future__ import annotations

import pytest
from starlette.requests import Request

from api.csv_answer import wants_csv


@pytest.mark.parametrize(
    ("accepts", "is_csv"),
    [
        ((), False),
        (("*/*",), False),
        (("application/json",), False),
        (("text/csv",), True),
        (("text/*",), True),
        (("TEXT/CSV; charset=utf-8",), True),
        (("text/csv, */*",), True),
        (("text/csv, application/json",), True),
        # As generated clients send it, which then read JSON.
        (("application/json, text/csv, application/problem+json",), False),
        (("application/json;q=0.5, text/csv",), True),
        (("text/csv;q=0.5, */*",), False),
        (("text/csv;q=0",), False),
        (("text/csv;q=much",), False),
        (("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",), False),
        (("", "text/csv"), True),
    ],
)
def test_csv_is_the_answer_where_the_client_would_rather_have_it(accepts: tuple[str, ...], is_csv: bool) -> None:
    headers = [(b"accept", text.encode()) for text in accepts]
    assert wants_csv(Request({"type": "http", "headers": headers})) is is_csv
