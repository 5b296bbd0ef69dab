"""A person is recognised by an HMAC alone, and a name is found wherever a document has it, and nowhere else."""

from __future__ import annotations

import json
import re
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.ingestion.config import IngestionConfig
from jobs.journal.erasing import erased, is_erased_violation
from metering.erasure import (
    Erased,
    ErasureKey,
    People,
    UnknownKey,
    keys_of,
    lost_keys_of,
    mention,
    pseudonym,
    replaced,
    texts_in,
    written_forms,
)

KEY, OTHER = (ErasureKey(letter.encode() * 32) for letter in "ab")
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | NAMES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
)


def people(account: str, user_id: str, number: int = 3, key: ErasureKey = KEY) -> People:
    return People([Erased(number, account, key.person(account, user_id), key.id)], [KEY, OTHER])


@given(NAMES, NAMES, NAMES, NAMES)
def test_an_hmac_is_of_one_user_of_one_account_under_one_key(a: str, u: str, b: str, v: str) -> None:
    assert (KEY.person(a, u) == KEY.person(b, v)) == ((a, u) == (b, v))
    assert KEY.person(a, u) != OTHER.person(a, u)


@given(NAMES, NAMES, NAMES)
def test_a_person_is_recognised_in_its_account_alone(account: str, user_id: str, other: str) -> None:
    for key in (KEY, OTHER):
        known = people(account, user_id, key=key)
        assert known.numbers(account, [user_id, other]) == {user_id: 3} | ({other: 3} if other == user_id else {})
        assert known.numbers(account + "x", [user_id]) == {}


def test_without_the_key_of_an_erasure_nobody_is_recognised_in_silence() -> None:
    with pytest.raises(UnknownKey, match=OTHER.id):
        People([Erased(1, "acme", OTHER.person("acme", "alice"), OTHER.id)], [KEY])


def test_a_key_that_is_said_to_be_lost_stops_nobody_and_hides_no_key_that_is_there() -> None:
    rows = [Erased(n, "acme", key.person("acme", f"u{n}"), key.id) for n, key in enumerate((KEY, OTHER), start=1)]
    found = People(rows, [KEY], lost={KEY.id, OTHER.id})
    assert found.numbers("acme", ["u1", "u2"]) == {"u1": 1}
    assert found.unrecognised == [2]
    text = f"{'a' * 32}, lost:{OTHER.id}"
    assert (keys_of(text), lost_keys_of(text)) == ((KEY,), frozenset({OTHER.id}))
    assert lost_keys_of("a" * 32) == frozenset()
    with pytest.raises(ValueError, match="16 hexadecimal digits"):
        lost_keys_of("lost:" + "a" * 32)


@pytest.mark.parametrize("order", [(KEY, OTHER), (OTHER, KEY)])
def test_who_was_forgotten_again_under_another_key_keeps_the_first_name(order: tuple[ErasureKey, ...]) -> None:
    other_person = Erased(1, "acme", order[1].person("acme", "bob"), order[1].id)
    rows = [Erased(n, "acme", key.person("acme", "alice"), key.id) for n, key in enumerate(order, start=2)]
    assert People([other_person, *rows], order).numbers("acme", ["alice"]) == {"alice": 2}
    assert People(rows, order).numbers("acme", ["alice"]) == {"alice": 2}


def test_a_key_is_never_printed() -> None:
    assert "aaaa" not in repr(KEY)
    with pytest.raises(ValueError, match="fewer than 32") as refused:
        keys_of("hunter2," + "a" * 32)
    assert "hunter2" not in str(refused.value)
    assert keys_of(f" {'a' * 32}, {'b' * 32} ,") == (KEY, OTHER)


@given(NAMES, st.booleans())
def test_a_name_is_found_in_every_written_form(name: str, is_plain: bool) -> None:
    for form in written_forms(name):
        text = json.dumps({"user": name}, ensure_ascii=not is_plain) if form == name else f'"{form}"'
        assert re.search(mention(name), text)
        assert pl.Series([text]).str.contains(mention(name)).to_list() == [True]


@pytest.mark.parametrize("text", ['"alice2"', "alice@example.org", "x-alice", "malice", "alice_1"])
def test_another_name_that_contains_it_is_not_found(text: str) -> None:
    assert not re.search(mention("alice"), text)


@pytest.mark.parametrize(
    ("text", "is_found"), [('{"n":42}', False), ('{"u":"42"}', True), ('{\\"u\\":\\"42\\"}', True)]
)
def test_a_name_of_digits_is_found_only_as_a_text(text: str, is_found: bool) -> None:
    assert bool(re.search(mention("42"), text)) == is_found


@given(VALUES, NAMES)
def test_another_name_stands_in_a_document_and_all_else_stays(value: Any, name: str) -> None:
    document = json.dumps({"user": name, "rest": value})
    changed = json.loads(replaced(document, name, "erased-3"))
    expected = json.loads(document)
    assert changed == swapped(expected, name)
    assert name not in texts_in(replaced(document, name, "erased-3")) - {"erased-3"} or name in map(
        str, numbers(expected)
    )


def swapped(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        return {key: swapped(inner, name) for key, inner in value.items()}
    if isinstance(value, list):
        return [swapped(inner, name) for inner in value]
    return "erased-3" if value == name and isinstance(value, str) else value


def numbers(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [number for inner in value.values() for number in numbers(inner)]
    if isinstance(value, list):
        return [number for inner in value for number in numbers(inner)]
    return [json.dumps(value)] if isinstance(value, int | float) else []


def test_numbers_keep_their_digits() -> None:
    assert replaced('{"n": 1.10, "m": 1e3, "u": "alice"}', "alice", "x") == '{"n":1.10,"m":1e3,"u":"x"}'


ROW = {
    "topic": "events",
    "disposition": "accepted",
    "family": "both",
    "type": "ai.inference.usage.v1",
    "account": "acme",
    "user_id": "alice",
    "element": None,
    "value": b'{"user":"alice"}',
    "key": b"alice",
    "record_headers": None,
    "violation": None,
}
KINDS = {
    "type": pl.String,
    "key": pl.Binary,
    "value": pl.Binary,
    "element": pl.Int32,
    "record_headers": pl.String,
    "violation": pl.String,
    "user_id": pl.String,
}


def changed(*rows: dict[str, Any]) -> list[dict[str, Any]]:
    numbered = [{**ROW, **row, "lsn": number} for number, row in enumerate(rows)]
    frame = pl.DataFrame(numbered, schema_overrides={**KINDS, "account": pl.String, "family": pl.String})
    return erased(frame, people("acme", "alice"), ["catalog.prices"]).to_dicts()


def test_an_accepted_row_keeps_its_columns_and_loses_its_documents() -> None:
    assert changed({}, {"user_id": "bob"}, {"account": "other"}) == [
        {"lsn": 0, "user_id": "erased-3", "value": None, "key": b"acme", "record_headers": None, "violation": None}
    ]


def test_a_dead_letter_with_the_name_keeps_no_document_and_says_so() -> None:
    rejected = {"disposition": "rejected", "user_id": None, "family": None, "type": None}
    header = '[{"key":"ce_user","value":"YWxpY2U="}]'
    found = changed(
        {**rejected, "violation": 'c /data: "alice" is no number'},
        {**rejected, "account": None, "value": b'{"subject":"acme","u":"alice"', "key": None},
        {**rejected, "account": None, "value": b'{"u":"alice"', "key": None},
        {**rejected, "value": b"{}", "record_headers": header, "key": None},
        {**rejected, "value": b'{"user":"bob"}', "key": None},
    )
    assert [row["lsn"] for row in found] == [0, 1, 3]
    assert {(row["user_id"], row["value"], row["record_headers"]) for row in found} == {(None, None, None)}
    assert all(is_erased_violation(row["violation"]) for row in found)
    assert {row["violation"] for row in found} == {
        "erased by erasure 3: the record is no longer there, and cannot be sent again"
    }


def test_an_event_without_a_contract_keeps_its_value_with_another_name() -> None:
    (row,) = changed({"type": "x", "family": None, "user_id": None, "value": b'{"u":"alice","n":1.50}'})
    assert row["value"] == b'{"u":"erased-3","n":1.50}'


@pytest.mark.parametrize("disposition", ["accepted", "rejected"])
def test_half_a_character_in_a_document_stops_nothing(disposition: str) -> None:
    """JSON can escape a text that is not in UTF-8: whoever sends one would stop ingestion for good."""
    unread = {"type": "x", "family": None, "user_id": None, "key": None, "disposition": disposition}
    values = (b'{"u":"\\ud800"}', b'{"n":"\\ud800","u":"alice"}')
    (row,) = changed(*({**unread, "value": value} for value in values))
    assert row["lsn"] == 1
    assert row["value"] == (b'{"n":"\\ud800","u":"erased-3"}' if disposition == "accepted" else None)


@pytest.mark.parametrize("depth", [950, 1_500, 20_000])
def test_an_event_that_is_nested_too_deeply_to_be_written_again_loses_its_value(depth: int) -> None:
    nested = b'{"a":' * depth + b'"alice"' + b"}" * depth
    (row,) = changed({"type": "x", "family": None, "user_id": None, "value": nested})
    assert row["value"] is None


def test_a_record_of_several_users_loses_its_document_and_each_row_its_own_name() -> None:
    found = changed({"user_id": "bob", "element": 1}, {"element": 2, "value": None, "key": None})
    assert [(row["user_id"], row["value"], row["key"]) for row in found] == [
        ("bob", None, b"acme"),
        ("erased-3", None, None),
    ]


def test_records_of_the_catalog_are_of_no_user() -> None:
    assert changed({"topic": "catalog.prices"}) == []


def test_what_is_erased_is_not_changed_again() -> None:
    (row,) = changed({})
    assert changed(row) == []


def test_a_pseudonym_is_of_its_erasure() -> None:
    assert pseudonym(7) == "erased-7"


def test_an_erased_value_has_no_digest_so_that_its_copy_is_a_repeat_all_the_same() -> None:
    validator = IngestionConfig().validator()
    assert validator.digests(pl.Series([None], dtype=pl.Binary)).to_list() == [None]
