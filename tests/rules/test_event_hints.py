"""What `weir contracts check` says of valid events: likely mistakes of a sender, and which odd ones are valid."""

from __future__ import annotations

from typing import Any

import pytest

from cli.event_hints import MAX_LISTED, likely_type
from metering.contracts.shipped import shipped
from tests.rules.test_contracts_command import EVENT, lines, validated, with_data

NO_TOKENS = "no token field was found: it has none of "


def checked(event: dict[str, Any]) -> dict[str, Any]:
    (row,) = validated(given=lines(event))
    return row


def test_unread_fields_are_listed_and_an_event_without_tokens_gets_a_hint() -> None:
    """As of a sender that writes the names of another API."""
    names = {"prompt_tokens": 100, "completion_tokens": 20}
    data = {"request_id": "r", "model": "m", "status": "completed", **names}
    row = checked({**EVENT, "type": "ai.inference.usage.v1", "data": data, "tenant": "t"})
    assert (row["disposition"], row["rule"]) == ("valid", None)
    assert row["unread"] == "/data/prompt_tokens, /data/completion_tokens, /tenant"
    assert row["hint"] == NO_TOKENS + "/data/input_tokens, /data/output_tokens, /data/cached_tokens"


def test_an_event_that_is_read_whole_has_no_hint() -> None:
    row = checked({**EVENT, "senttime": "2001-01-01T00:00:01Z", "sequence": 1})
    assert (row["disposition"], row["unread"], row["hint"]) == ("valid", None, None)


@pytest.mark.parametrize(("status", "has_hint"), [("completed", True), ("error", False), ("cancelled", False)])
def test_only_what_was_completed_is_expected_to_report_tokens(status: str, has_hint: bool) -> None:
    row = checked(with_data(status=status, input_tokens=None))
    assert (row["disposition"], row["hint"] is not None) == ("valid", has_hint)


def test_a_request_reports_no_tokens_and_an_invalid_event_has_no_hint() -> None:
    asked = {**EVENT, "type": "ai.inference.request.v1", "data": {"request_id": "r", "model": "m"}}
    assert checked(asked)["hint"] is None
    row = checked(with_data(input_tokens=-1, prompt_tokens=1))
    assert (row["disposition"], row["unread"], row["hint"]) == ("invalid", None, None)


def test_many_unread_fields_are_counted() -> None:
    unread = checked(with_data(**{f"f{number}": 1 for number in range(MAX_LISTED + 5)}))["unread"]
    assert unread.endswith(f"/data/f{MAX_LISTED - 1}, and 5 more")


@pytest.mark.parametrize("number", ["1" * 5_000, "-" + "9" * 5_000, "1e999999", "0." + "3" * 5_000])
def test_a_number_of_any_length_in_an_unread_field_is_listed(number: str) -> None:
    (row,) = validated(given=lines(EVENT).replace(b'"specversion"', f'"long": {number}, "specversion"'.encode()))
    assert (row["disposition"], row["unread"], row["hint"]) == ("valid", "/long", None)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("litellm_token", "litellm_tokens"),
        ("ai.inference.usage", "ai.inference.usage.v1"),
        ("ai.inference.completions.v1", "ai.inference.completion.v1"),
        ("com.example.order", None),
    ],
)
def test_a_type_with_a_typo_names_the_likely_one(name: str, meant: str | None) -> None:
    assert likely_type(name, shipped()) == meant
    assert checked({**EVENT, "type": name})["hint"] == (meant and f"did you mean {meant}?")


@pytest.mark.parametrize(
    "time",
    [
        *("2026-11-25T18:00:00.123456789Z", "2026-11-25t18:00:00.5z"),
        *("2026-11-25T18:00:00+00:00", "2026-11-25T18:00:00-00:00"),
    ],
)
def test_each_way_to_write_an_instant_that_rfc_3339_knows_is_valid(time: str) -> None:
    assert checked({**EVENT, "time": time})["disposition"] == "valid"


def test_letters_of_all_scripts_are_valid_and_a_nul_or_half_a_surrogate_pair_is_not() -> None:
    odd = {**EVENT, "id": "ключ-日本語-🚀", "subject": "müller & söhne"}
    half = lines(EVENT).replace(b'"r-1"', b'"r-1\\ud83d"')
    nul = lines(EVENT).replace(b'"1"', b'"nul\\u0000x"')
    rows = validated(given=lines(odd) + nul + half)
    assert [row["reason"] for row in rows] == [None, "nul_character", "malformed"]
    assert [row["rule"] for row in rows] == [None, "the character U+0000", "half of a surrogate pair"]
