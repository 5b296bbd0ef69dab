"""What is published of a window and of a correction, byte for byte, and that no two windows have one id."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from jobs.billing.messages import WINDOW_ID, correction_message, window_message

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
WINDOW: dict[str, Any] = {
    "version": 4711,
    "window_start": NOON,
    "window_end": NOON.replace(minute=1),
    "account": "ac„me",
    "model": None,
    "meter": "input_tokens",
    "currency": "EUR",
    "price_version": 17,
    "quantity": "1200",
    "unit_price": "0.00000015",
    "amount": "0.00018",
    "late_quantity": "0",
    "late_rows": 0,
    "unmetered_rows": 1,
    "corrected": False,
    "updated_at": NOON.replace(minute=2, microsecond=5),
}
CORRECTION: dict[str, Any] = {
    "window_start": NOON,
    "account": "acme",
    "model": "small-1",
    "meter": "requests",
    "currency": None,
    "cause": "repriced",
    "old_quantity": "3",
    "new_quantity": "4",
    "old_amount": None,
    "new_amount": "0.4",
    "decision": None,
    "corrected_at": NOON,
    "dimensions": {"region": "eu"},
    "usage_lsns": [8, 9],
    "number": 3,
}


def test_a_window_is_a_cloudevent_whose_key_is_its_id() -> None:
    key, value = window_message(WINDOW)
    identity = '["2026-03-01T12:00:00Z","ac„me",null,"input_tokens","EUR",17]'
    assert key.decode() == identity
    row = {name: said for name, said in WINDOW.items() if name not in ("version", "updated_at")}
    instants = {"window_start": "2026-03-01T12:00:00Z", "window_end": "2026-03-01T12:01:00Z"}
    assert json.loads(value) == {
        "specversion": "1.0",
        "type": "weir.window.v1",
        "source": "weir",
        "id": f"{identity}@4711",
        "subject": "ac„me",
        "time": "2026-03-01T12:02:00.000005Z",
        "datacontenttype": "application/json",
        "data": {"id": identity, "version": 4711, **row, **instants},
    }


def test_a_correction_is_a_cloudevent_whose_key_is_the_account() -> None:
    key, value = correction_message(CORRECTION)
    assert key == b"acme"
    row = {name: said for name, said in CORRECTION.items() if name != "number"}
    instants = {"window_start": "2026-03-01T12:00:00Z", "corrected_at": "2026-03-01T12:00:00Z"}
    assert json.loads(value) == {
        "specversion": "1.0",
        "type": "weir.correction.v1",
        "source": "weir",
        "id": '[8,"requests"]@1',
        "subject": "acme",
        "time": "2026-03-01T12:00:00Z",
        "datacontenttype": "application/json",
        "data": {"id": '[8,"requests"]', "version": 1, **row, **instants},
    }


names = st.one_of(st.none(), st.text(max_size=6), st.sampled_from(['","', "null", '"', "\\"]))
keys = st.tuples(st.datetimes(timezones=st.just(UTC)), names, names, names, names, st.one_of(st.none(), st.integers()))


@given(one=keys, other=keys)
def test_windows_have_equal_ids_only_if_they_are_equal(one: tuple[Any, ...], other: tuple[Any, ...]) -> None:
    (key, _), (other_key, _) = (
        window_message({**WINDOW, **dict(zip(WINDOW_ID, each, strict=True))}) for each in (one, other)
    )
    assert (key == other_key) == (one == other)
