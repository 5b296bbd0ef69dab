"""Method: changes as Debezium writes them, and everything that could be wrong with one."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from jobs.journal.catalog_changes import parse_change
from jobs.journal.catalog_problems import MAX_LEVELS, change_problem
from jobs.streams import ACCOUNTS, PRICES, CatalogTopic

COMMITTED_MS = 1_767_225_600_000
ACCOUNT = {"account": "a1", "name": "Acme", "plan": "pro", "currency": "EUR", "timezone": "UTC", "effective_from": None}
PRICE = {
    "plan": "pro",
    "model": "m",
    "meter": "input_tokens",
    "currency": "EUR",
    "unit_price": "0.000003000001",
    "effective_from": "2026-02-01T01:00:00+01:00",
}


def change(after: Any = None, *, before: Any = None, op: str = "c", **fields: Any) -> bytes:
    source = {"ts_ms": COMMITTED_MS, "connector": "postgresql"}
    return json.dumps({"before": before, "after": after, "op": op, "ts_ms": 5, "source": source, **fields}).encode()


def test_an_account_is_a_version_from_its_commit() -> None:
    row = parse_change(CatalogTopic.ACCOUNTS, change(ACCOUNT), 7)
    instants = dict.fromkeys(("effective_from", "committed_at"), datetime(2026, 1, 1, tzinfo=UTC))
    nothing = dict.fromkeys(("changed_by", "changed_at", "tags", "parent"))
    assert row == {**ACCOUNT, "lsn": 7, "deleted": False, **instants, **nothing}
    assert pa.Table.from_pylist([row], schema=ACCOUNTS).num_rows == 1


def test_without_a_commit_time_the_connectors_counts() -> None:
    row = parse_change(CatalogTopic.ACCOUNTS, change(ACCOUNT, source=None, ts_ms=1_000), 7)
    assert row is not None
    assert row["effective_from"] == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)


def test_a_price_keeps_every_digit_and_its_instant() -> None:
    row = parse_change(CatalogTopic.PRICES, change(PRICE, op="r"), 9)
    assert row is not None
    assert row["unit_price"] == Decimal("0.000003000001")
    assert row["effective_from"] == datetime(2026, 2, 1, tzinfo=UTC)
    assert pa.Table.from_pylist([row], schema=PRICES).to_pylist() == [
        row | dict.fromkeys(("source_lsn", "source_at", "ends_at"))
    ]


CAPTURED = """
{"before":null,"after":{"account":"c","name":"C","plan":"p2","currency":"EUR","timezone":"UTC","effective_from":null,
"changed_by":"ann@finance","changed_at":"2026-11-23T23:16:24.341123Z"},"source":{"version":"3.7.0.Final",
"connector":"postgresql","name":"weir","ts_ms":1795475784343,"snapshot":"false","db":"weir","sequence":"[null,\\"30186784\\"]","ts_us":1795475784343408,
"ts_ns":1795475784343408000,"schema":"catalog","table":"accounts","txId":774,"lsn":30186784,"xmin":null,"origin":null,
"origin_lsn":null},"transaction":null,"op":"c","ts_ms":1795475784478,"ts_us":1795475784478556,
"ts_ns":1795475784478556338}
"""
"""As Debezium wrote it."""


def test_a_captured_account_applies_from_its_change() -> None:
    key = b'{"account":"c"}'
    assert change_problem(CatalogTopic.ACCOUNTS, key, CAPTURED.encode()) is None
    row = parse_change(CatalogTopic.ACCOUNTS, CAPTURED.encode(), 3)
    assert row is not None
    changed_at = datetime(2026, 11, 23, 23, 16, 24, 341123, tzinfo=UTC)
    assert (row["effective_from"], row["committed_at"]) == (changed_at, changed_at)
    assert (row["changed_by"], row["changed_at"]) == ("ann@finance", changed_at)
    assert (row["source_lsn"], row["source_at"]) == (30186784, changed_at + timedelta(microseconds=2285))
    again = json.loads(CAPTURED) | {"op": "r"}
    again["source"] |= {"ts_ms": 1795475999999, "ts_us": 1795475999999000, "snapshot": "first", "lsn": 30999999}
    told_anew = parse_change(CatalogTopic.ACCOUNTS, json.dumps(again).encode(), 4)
    assert told_anew is not None
    assert told_anew["effective_from"] == changed_at


@pytest.mark.parametrize("source", [{"lsn": "7"}, {"lsn": -1}, {"lsn": True}, {"lsn": 10**18}, {"ts_us": 1.5}])
def test_an_invalid_place_in_the_log_is_ignored(source: dict[str, object]) -> None:
    """Earlier versions accepted whatever stood there."""
    said = json.loads(CAPTURED)
    said["source"] |= source
    row = parse_change(CatalogTopic.ACCOUNTS, json.dumps(said).encode(), 3)
    assert row is not None
    assert "source_lsn" not in row


def test_a_price_given_as_a_json_number_is_read_exactly() -> None:
    value = change(PRICE).replace(b'"0.000003000001"', b"0.300000000001")
    row = parse_change(CatalogTopic.PRICES, value, 9)
    assert row is not None
    assert row["unit_price"] == Decimal("0.300000000001")


def test_a_deletion_is_a_version_too() -> None:
    account = parse_change(CatalogTopic.ACCOUNTS, change(before={"account": "a1", "name": None}, op="d"), 8)
    price = parse_change(CatalogTopic.PRICES, change(before=PRICE, op="d"), 9)
    assert account is not None
    assert price is not None
    assert pa.Table.from_pylist([account], schema=ACCOUNTS)["deleted"].to_pylist() == [True]
    assert pa.Table.from_pylist([price], schema=PRICES)["unit_price"].to_pylist() == [None]


PLACED = {"ts_ms": COMMITTED_MS, "ts_us": COMMITTED_MS * 1_000 + 7, "lsn": 42}
COMMITTED = datetime(2026, 1, 1, tzinfo=UTC)
AS_OF = {"deleted_at": "2025-12-31T23:00:00.000001Z", "changed_by": "ann", "changed_at": "2026-01-01T00:00:00Z"}


@pytest.mark.parametrize(
    ("before", "source", "ends_at"),
    [
        ({}, {"ts_ms": COMMITTED_MS}, COMMITTED),
        ({}, PLACED, COMMITTED + timedelta(microseconds=7)),
        ({"deleted_at": None, "changed_by": "bob", "changed_at": "2025-01-01T00:00:00Z"}, PLACED, None),
        (AS_OF, PLACED, COMMITTED - timedelta(hours=1) + timedelta(microseconds=1)),
    ],
)
def test_a_deleted_price_ends_at_its_deletion_time_or_else_its_commit(
    before: dict[str, Any], source: dict[str, Any], ends_at: datetime | None
) -> None:
    row = parse_change(CatalogTopic.PRICES, change(before=PRICE | before, op="d", source=source), 9)
    assert row is not None
    assert row["ends_at"] == (ends_at or COMMITTED + timedelta(microseconds=7))
    assert row["effective_from"] == datetime(2026, 2, 1, tzinfo=UTC)
    assert row["changed_by"] == ("ann" if before is AS_OF else None)


def test_a_deleted_account_ends_at_the_moment_that_its_row_says() -> None:
    before = ACCOUNT | AS_OF | {"effective_from": "2025-01-01T00:00:00Z"}
    row = parse_change(CatalogTopic.ACCOUNTS, change(before=before, op="d", source=PLACED), 9)
    assert row is not None
    assert (row["effective_from"], row["committed_at"]) == (datetime.fromisoformat(AS_OF["deleted_at"]), COMMITTED)
    assert (row["changed_by"], row["deleted"]) == ("ann", True)


def test_a_deletion_time_without_a_deletion_is_ignored() -> None:
    """The moment is told of a row just before it is deleted: until then it is as it was."""
    told = change(PRICE | AS_OF, op="u", source=PLACED)
    [row] = pa.Table.from_pylist([parse_change(CatalogTopic.PRICES, told, 9)], schema=PRICES).to_pylist()
    assert (row["ends_at"], row["deleted"]) == (None, False)


@pytest.mark.parametrize("moment", ["infinity", "2026-01-01", 7, "292278994-08-16T23:00:00Z"])
@pytest.mark.parametrize(("topic", "row"), [(CatalogTopic.PRICES, PRICE), (CatalogTopic.ACCOUNTS, ACCOUNT)])
def test_an_invalid_deletion_time_is_a_problem(topic: CatalogTopic, row: Any, moment: Any) -> None:
    """To end it at another one would cost money that nobody sees."""
    assert change_problem(topic, None, change(before=row | {"deleted_at": moment}, op="d")) is not None


def test_an_account_has_its_tags_and_parent_as_debezium_sends_them() -> None:
    row = parse_change(CatalogTopic.ACCOUNTS, change(ACCOUNT | {"tags": '{"b": "é", "a": ""}', "parent": "top"}), 7)
    assert row is not None
    assert (row["tags"], row["parent"]) == ('{"a":"","b":"é"}', "top")
    none = parse_change(CatalogTopic.ACCOUNTS, change(ACCOUNT | {"tags": "{}", "parent": None}), 7)
    before = parse_change(CatalogTopic.ACCOUNTS, change(ACCOUNT), 7)
    assert none == before, "an account of before has none, and says nothing new"


@pytest.mark.parametrize(
    "grown",
    [
        {"tags": "[]"},
        {"tags": '{"team": 7}'},
        {"tags": json.dumps({"team": "x" * 257})},
        {"tags": {"": "x"}},
        {"tags": 7},
        {"parent": "p" * 513},
        {"parent": "\0"},
    ],
)
def test_tags_or_a_parent_that_no_database_of_ours_would_take_are_a_problem(grown: dict[str, Any]) -> None:
    """Releases of before took the account, whatever stood there: they read neither."""
    value = change(ACCOUNT | grown)
    assert change_problem(CatalogTopic.ACCOUNTS, None, value) is not None
    row = parse_change(CatalogTopic.ACCOUNTS, value, 7)
    assert row is not None
    assert (row["tags"], row["parent"]) == (None, None)


def test_a_repeated_tag_is_a_problem() -> None:
    twice = change(ACCOUNT | {"tags": '{"team": "a", "team": "b"}'})
    assert change_problem(CatalogTopic.ACCOUNTS, None, twice) is not None


COMPLETE = {
    CatalogTopic.ACCOUNTS: ACCOUNT
    | dict.fromkeys(("changed_by", "changed_at", "deleted_at", "parent"))
    | {"tags": "{}"},
    CatalogTopic.PRICES: PRICE | dict.fromkeys(("changed_by", "changed_at", "deleted_at")),
    CatalogTopic.PLANS: {"plan": "pro", "name": "Pro"},
}
NOT_READ = [(CatalogTopic.PLANS, "name"), (CatalogTopic.PRICES, "deleted_at")]
"""What is not read of a row that there is."""
NEEDED = [(topic, name) for topic, row in COMPLETE.items() for name in row if (topic, name) not in NOT_READ]


@pytest.mark.parametrize(("topic", "name"), NEEDED)
def test_a_captured_row_without_a_column_that_we_read_is_a_problem_that_names_it(
    topic: CatalogTopic, name: str
) -> None:
    """It was renamed. Of one that may be empty nobody would see that it is missing: the bill would be another."""
    row = COMPLETE[topic]
    assert change_problem(topic, None, change(row, op="u", source=PLACED)) is None
    renamed = {key if key != name else f"{key}_of_before": value for key, value in row.items()}
    problem = change_problem(topic, None, change(renamed, op="u", source=PLACED))
    assert problem == f"the row has no {name}: {topic} has no such column any more, or it is called otherwise"


@pytest.mark.parametrize("topic", COMPLETE)
def test_columns_of_your_own_are_not_read(topic: CatalogTopic) -> None:
    grown = change(COMPLETE[topic] | {"crm_id": "7", "notes": {"deep": [1]}}, op="u", source=PLACED)
    assert change_problem(topic, None, grown) is None
    assert parse_change(topic, grown, 9) == parse_change(topic, change(COMPLETE[topic], op="u", source=PLACED), 9)


@pytest.mark.parametrize("topic", COMPLETE)
def test_a_row_that_was_captured_before_its_table_grew_is_fine(topic: CatalogTopic) -> None:
    before = {name: value for name, value in COMPLETE[topic].items() if name not in ("deleted_at", "tags", "parent")}
    assert change_problem(topic, None, change(before, op="u", source=PLACED)) is None


def test_a_captured_deletion_needs_its_key_alone_and_all_of_that() -> None:
    """A price without `effective_from` would be another one."""
    key = {name: PRICE[name] for name in ("plan", "model", "meter", "currency", "effective_from")}
    assert change_problem(CatalogTopic.PRICES, None, change(before=key, op="d", source=PLACED)) is None
    del key["effective_from"]
    problem = change_problem(CatalogTopic.PRICES, None, change(before=key, op="d", source=PLACED))
    assert problem is not None
    assert "the row has no effective_from" in problem


def test_tombstones_and_plans_are_no_versions() -> None:
    assert parse_change(CatalogTopic.PRICES, None, 1) is None
    assert change_problem(CatalogTopic.PRICES, b'{"plan": "pro"}', None) is None
    assert parse_change(CatalogTopic.PLANS, change({"plan": "pro", "name": "Pro"}), 1) is None


def author_of(value: bytes) -> tuple[Any, Any]:
    """Who made the version that a price's change becomes, and when."""
    assert change_problem(CatalogTopic.PRICES, None, value) is None
    [row] = pa.Table.from_pylist([parse_change(CatalogTopic.PRICES, value, 9)], schema=PRICES).to_pylist()
    return row["changed_by"], row["changed_at"]


def test_a_version_has_its_author_and_time() -> None:
    said = {"changed_by": "ann@finance", "changed_at": "2026-02-01T01:00:00.000001+01:00"}
    at = datetime(2026, 2, 1, microsecond=1, tzinfo=UTC)
    assert author_of(change(PRICE | said)) == ("ann@finance", at)
    account = parse_change(CatalogTopic.ACCOUNTS, change(ACCOUNT | said), 7)
    assert account is not None
    assert (account["changed_by"], account["changed_at"]) == ("ann@finance", at)


def test_the_author_of_a_deleted_row_is_not_the_one_who_deleted_it() -> None:
    gone = PRICE | {"changed_by": "ann@finance", "changed_at": "2026-02-01T00:00:00Z"}
    assert author_of(change(before=gone, op="d")) == (None, None)


@pytest.mark.parametrize("name", [None, "", 5, "a\0", "a" * 513, "\ud800", ["ann"]])
@pytest.mark.parametrize("at", [None, "", 5, "yesterday", "2026-01-01T00:00:00", "0001-01-01T00:00:00+14:00"])
def test_no_price_is_refused_for_who_changed_it(name: Any, at: Any) -> None:
    assert author_of(change(PRICE | {"changed_by": name, "changed_at": at})) == (None, None)


@pytest.mark.parametrize("at", [5, "yesterday", "2026-01-01T00:00:00"])
def test_an_account_without_a_time_of_change_applies_from_its_commit(at: Any) -> None:
    row = parse_change(CatalogTopic.ACCOUNTS, change(ACCOUNT | {"changed_by": "ann", "changed_at": at}), 7)
    assert row is not None
    assert (row["effective_from"], row["changed_by"], row["changed_at"]) == (
        datetime(2026, 1, 1, tzinfo=UTC),
        "ann",
        None,
    )


ACCOUNT_PROBLEMS: list[bytes] = [
    b"",
    b"{",
    b"[]",
    b"\xff",
    b"null",
    b"[" * 100_000,
    change(ACCOUNT).decode().encode("utf-16"),
    change(ACCOUNT) + b"{}",
    change(ACCOUNT, op="t"),
    change(None),
    change([]),
    change(None, op="d"),
    change(before={"name": "Acme"}, op="d"),
    change(ACCOUNT, source=None, ts_ms=None),
    change(ACCOUNT, source={"ts_ms": "now"}),
    change(ACCOUNT, source={"ts_ms": 10**18}),
    change(ACCOUNT | {"account": ""}),
    change(ACCOUNT | {"account": None}),
    change(ACCOUNT | {"account": 5}),
    change(ACCOUNT | {"account": "a\0"}),
    change(ACCOUNT | {"account": "\ud800"}),
    change(ACCOUNT | {"account": "a" * 513}),
    change(ACCOUNT | {"plan": None}),
    change(ACCOUNT | {"currency": "eur"}),
    change(ACCOUNT | {"currency": "EUR\n"}),
    change(ACCOUNT | {"effective_from": "2026-01-01T00:00:00"}),
    change(ACCOUNT | {"effective_from": "0001-01-01T00:00:00+14:00"}),
    change(ACCOUNT | {"effective_from": "infinity"}),
    change(ACCOUNT | {"effective_from": 1_767_225_600}),
]

UNIT_PRICES: list[Any] = [
    "NaN",
    "Infinity",
    "-0.1",
    "0.0000000000001",
    "100000000",
    "1,5",
    "",
    None,
    True,
    float("nan"),
]


@pytest.mark.parametrize("value", ACCOUNT_PROBLEMS)
def test_an_inapplicable_change_has_a_problem(value: bytes) -> None:
    assert change_problem(CatalogTopic.ACCOUNTS, b'{"account": "a1"}', value)


@pytest.mark.parametrize("unit_price", UNIT_PRICES)
def test_a_unit_price_that_the_table_could_not_hold_is_a_problem(unit_price: Any) -> None:
    assert change_problem(CatalogTopic.PRICES, None, change(PRICE | {"unit_price": unit_price}))


@pytest.mark.parametrize("unit_price", ["0", "99999999.999999999999", "1.5000000000000000", "3E-6", 2])
def test_a_unit_price_that_the_table_can_hold_is_fine(unit_price: Any) -> None:
    assert change_problem(CatalogTopic.PRICES, None, change(PRICE | {"unit_price": unit_price})) is None


def test_a_meter_may_have_a_price_before_it_is_declared() -> None:
    """A rejected change is never read again: the price would be missing from the day of the declaration on."""
    assert change_problem(CatalogTopic.PRICES, None, change(PRICE | {"meter": "images"})) is None
    assert change_problem(CatalogTopic.PRICES, None, change(PRICE | {"meter": ""}))


def test_a_change_under_another_key_is_a_problem() -> None:
    assert change_problem(CatalogTopic.ACCOUNTS, b'{"account": "a1"}', change(ACCOUNT)) is None
    assert change_problem(CatalogTopic.ACCOUNTS, b'{"account": "a2"}', change(ACCOUNT))
    assert change_problem(CatalogTopic.ACCOUNTS, b"a1", change(ACCOUNT))


TWICE: list[tuple[bytes, bytes]] = [
    (b'"unit_price": "0.000003000001"', b'"unit_price": "0.000003000001", "unit_price": "3"'),
    (b'"unit_price": "0.000003000001"', b'"unit_price": "0.000003000001", "unit_pric\\u0065": "3"'),
    (b'"op": "c"', b'"op": "c", "op": "c"'),
    (b'"connector"', b'"connector": "postgresql", "connector"'),
]


@pytest.mark.parametrize(("once", "twice"), TWICE)
def test_a_change_with_a_repeated_member_is_a_problem(once: bytes, twice: bytes) -> None:
    value = change(PRICE)
    assert value.count(once) == 1
    problem = change_problem(CatalogTopic.PRICES, None, value.replace(once, twice))
    assert problem is not None
    assert "twice" in problem


def test_a_key_with_a_repeated_member_is_a_problem() -> None:
    assert change_problem(CatalogTopic.ACCOUNTS, b'{"account": "a2", "account": "a1"}', change(ACCOUNT))


def test_one_duplicate_among_a_hundred_thousand_members_is_found_quickly() -> None:
    """Each compared with all took minutes, in which a driver is taken to hang, is ended, and begins again, for ever."""
    members = b"".join(b'"m%d": 1, ' % number for number in range(100_000))
    assert change_problem(CatalogTopic.PLANS, None, b'{"after": {%b"m99999": 1}}' % members)


def test_changes_accepted_by_earlier_versions_are_read_unchanged() -> None:
    row = parse_change(CatalogTopic.PRICES, change(PRICE).replace(*TWICE[0]), 9)
    assert row is not None
    assert row["unit_price"] == Decimal(3)


def nested(levels: int) -> bytes:
    """A change with so many levels: its envelope, `after`, and arrays in an unknown field."""
    return change(ACCOUNT | {"deep": "@"}).replace(b'"@"', b"[" * (levels - 2) + b"]" * (levels - 2))


def test_a_change_has_a_limit_of_levels() -> None:
    assert change_problem(CatalogTopic.ACCOUNTS, None, nested(MAX_LEVELS)) is None
    assert change_problem(CatalogTopic.ACCOUNTS, None, nested(MAX_LEVELS + 1))


@pytest.mark.parametrize("levels", [MAX_LEVELS, 500, 800])
def test_nesting_is_limited_alike_in_all_applications(levels: int) -> None:
    def read(calls: int) -> object:
        return read(calls - 1) if calls else parse_change(CatalogTopic.ACCOUNTS, nested(levels), 1)

    if change_problem(CatalogTopic.ACCOUNTS, None, nested(levels)) is None:
        assert read(500) is not None
