"""A change that was published twice is one version: any repetition of a topic's changes leaves the same versions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jobs.joins.catalog import without_repeats
from jobs.streams import ACCOUNTS, PRICES, SCHEMAS, Table

START = datetime(2026, 1, 1, tzinfo=UTC)
Said = tuple[str, str | None, int]
"""Account, plan (None: deleted), and the hour from which it holds."""

changes = st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([None, "p", "q"]), st.integers(0, 2)), max_size=8)


def table(said: list[Said], first_lsn: int) -> pa.Table:
    rows: list[dict[str, Any]] = [
        {"lsn": lsn, "account": account, "plan": plan, "deleted": plan is None}
        | {"effective_from": START + timedelta(hours=hour)}
        for lsn, (account, plan, hour) in enumerate(said, start=first_lsn)
    ]
    return pa.Table.from_pylist(rows, schema=ACCOUNTS)


def said_by(versions: pa.Table) -> list[Said]:
    return [
        (row["account"], row["plan"], (row["effective_from"] - START) // timedelta(hours=1))
        for row in versions.to_pylist()
    ]


def taken(batches: list[list[Said]]) -> list[Said]:
    versions, lsn = ACCOUNTS.empty_table(), 1
    for batch in batches:
        versions = pa.concat_tables([versions, without_repeats(Table.ACCOUNTS, versions, table(batch, lsn))])
        lsn += len(batch)
    return said_by(versions)


@settings(deadline=None)
@given(batches=st.lists(changes, max_size=4))
def test_oracle_unchanged_values_make_no_new_version(batches: list[list[Said]]) -> None:
    expected: list[Said] = []
    newest: dict[str, Said] = {}
    for change in (change for batch in batches for change in batch):
        if newest.get(change[0]) != change:
            expected.append(change)
        newest[change[0]] = change
    assert taken(batches) == expected


def test_a_change_published_again_after_a_crash_makes_no_version() -> None:
    said: list[Said] = [("a", "p", 0), ("b", "p", 0)]
    assert taken([said, said]) == said
    assert taken([[*said, *said]]) == said


def test_what_was_so_before_and_is_so_again_is_a_version() -> None:
    assert len(taken([[("a", "p", 0), ("a", "q", 1), ("a", "p", 2)]])) == 3


@settings(deadline=None)
@given(
    said=st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([None, "p", "q"]), st.just(0)), max_size=8),
    again=st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=3),
    cuts=st.sets(st.integers(0, 30)),
    restored_before=st.integers(0, 9),
    together=st.integers(1, 4),
)
def test_property_changes_that_a_killed_connector_repeats_make_no_version_wherever_batches_are_cut(
    said: list[Said], again: list[tuple[int, int]], cuts: set[int], restored_before: int, together: int
) -> None:
    """It goes on from some change that it had told, also twice; in a database that was restored the log begins anew,
    and what was before is gone. Changes of one transaction (`together`) were committed at one time."""
    places = [
        (1_000 + number, START + timedelta(seconds=number // together))
        if number < restored_before
        else (number - restored_before, START + timedelta(hours=1, seconds=number // together))
        for number in range(len(said))
    ]
    order = list(range(len(said)))
    for end, back in sorted(again):
        # What was told up to a moment, and then once more from a moment before it.
        at = min(end, len(said))
        first = order.index(at) if at in order else len(order)
        order[first:first] = range(max(0 if at <= restored_before else restored_before, at - back), at)
    records = [(said[number], places[number]) for number in order]

    assert said_by(placed(records, cuts)) == taken([said])


def placed(records: list[tuple[Said, tuple[int, datetime]]], cuts: set[int]) -> pa.Table:
    """The versions that captured changes leave, taken in batches that end before `cuts`."""
    rows = table([said for said, _ in records], 1).to_pylist()
    rows = [{**row, "source_lsn": at[0], "source_at": at[1]} for row, (_, at) in zip(rows, records, strict=True)]
    versions, first = ACCOUNTS.empty_table(), 0
    for end in [*sorted(cut for cut in cuts if cut < len(rows)), len(rows)]:
        batch = pa.Table.from_pylist(rows[first:end], schema=ACCOUNTS)
        versions, first = pa.concat_tables([versions, without_repeats(Table.ACCOUNTS, versions, batch)]), end
    return versions


priced = st.tuples(
    st.sampled_from("ab"),
    st.sampled_from([None, 1, 2]),
    st.integers(0, 1),
    st.sampled_from([None, "ann", "bob"]),
)
"""Plan, unit price (None: deleted), the hour from which it holds, and who said so."""


def prices(said: list[tuple[str, int | None, int, str | None]], first_lsn: int) -> pa.Table:
    rows: list[dict[str, Any]] = [
        {"lsn": lsn, "plan": plan, "model": "m", "meter": "requests", "currency": "EUR"}
        | {"effective_from": START + timedelta(hours=hour), "deleted": price is None}
        | {"unit_price": None if price is None else Decimal(price)}
        | {"changed_by": author, "changed_at": author and START + timedelta(days=lsn)}
        for lsn, (plan, price, hour, author) in enumerate(said, start=first_lsn)
    ]
    return pa.Table.from_pylist(rows, schema=PRICES)


def versions_of(table: Table, batches: list[pa.Table]) -> pa.Table:
    versions = SCHEMAS[table].empty_table()
    for batch in batches:
        versions = pa.concat_tables([versions, without_repeats(table, versions, batch)])
    return versions


def deleted(lsn: int, hour: int) -> pa.Table:
    """A price that is told to have ended so many hours after START."""
    row = prices([("a", None, 0, None)], lsn).to_pylist()[0]
    return pa.Table.from_pylist([row | {"ends_at": START + timedelta(hours=hour)}], schema=PRICES)


def test_the_first_deletion_time_wins() -> None:
    """It is gone: nobody can delete it once more, and whoever tells that again knows no better."""
    told = [prices([("a", 1, 0, None)], 1), deleted(2, 5), deleted(3, 4), deleted(4, 6)]
    assert versions_of(Table.PRICES, told)["lsn"].to_pylist() == [1, 2]
    assert versions_of(Table.PRICES, [pa.concat_tables(told)])["lsn"].to_pylist() == [1, 2]


def test_a_price_that_is_there_again_can_be_deleted_again() -> None:
    told = [prices([("a", 1, 0, None)], 1), deleted(2, 5), prices([("a", 1, 0, None)], 3), deleted(4, 6)]
    assert versions_of(Table.PRICES, told)["lsn"].to_pylist() == [1, 2, 3, 4]


@settings(deadline=None)
@given(batches=st.lists(st.lists(priced, max_size=8), max_size=4))
def test_oracle_a_change_of_author_alone_is_not_a_version(
    batches: list[list[tuple[str, int | None, int, str | None]]],
) -> None:
    """A version has a line of a bill: of the same price there is one, whoever said it again."""
    every: list[pa.Table] = []
    nobodys: list[pa.Table] = []
    for batch in batches:
        lsn = 1 + sum(rows.num_rows for rows in every)
        every.append(prices(batch, lsn))
        nobodys.append(prices([(plan, price, hour, None) for plan, price, hour, _ in batch], lsn))
    found = versions_of(Table.PRICES, every).to_pylist()
    assert [row["lsn"] for row in found] == versions_of(Table.PRICES, nobodys)["lsn"].to_pylist()
    said_first = {row["lsn"]: row for batch in every for row in batch.to_pylist()}
    assert found == [said_first[row["lsn"]] for row in found]


edits = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from([None, 1, 2, 2]), st.sampled_from([None, 1, 5])), max_size=14
)
"""Plan, unit price (None: deleted), and of a deletion the hour as of which (None: as of its commit)."""
Told = dict[str, Any]


@settings(deadline=None)
@given(
    edited=edits,
    transactions=st.lists(st.integers(1, 5), max_size=8),
    restored=st.tuples(st.integers(0, 14), st.integers(0, 14)) | st.none(),
    again=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=4),
    cuts=st.sets(st.integers(0, 60)),
)
@example([("a", 1, None), ("a", None, 1), ("a", 1, None), ("a", None, None)], [4], None, [], set())
def test_property_prices_that_end_are_published_again_from_a_restored_database_too(
    edited: list[tuple[str, int | None, int | None]],
    transactions: list[int],
    restored: tuple[int, int] | None,
    again: list[tuple[int, int]],
    cuts: set[int],
) -> None:
    """The database goes back to what it was, its log begins anew, and a snapshot tells its rows at one place."""
    log, first = log_of(edited, transactions, restored)
    order = list(range(len(log)))
    for end, back in again:
        at = min(end, len(log))
        place = order.index(at) if at in order else len(order)
        order[place:place] = range(max(0 if at <= first else first, at - back), at)
    told = [log[number] for number in order]
    ends = [*sorted(cut for cut in cuts if cut < len(told)), len(told)]
    rows = [{**row, "lsn": lsn} for lsn, row in enumerate(told, start=1)]
    batches = [
        pa.Table.from_pylist(rows[begin:end], schema=PRICES) for begin, end in zip([0, *ends], ends, strict=False)
    ]
    found = versions_of(Table.PRICES, batches).drop_columns("lsn").to_pylist()

    expected: list[Told] = []
    newest: dict[str, list[Told]] = {"a": [], "b": []}
    for row in pa.Table.from_pylist(log, schema=PRICES).drop_columns("lsn").to_pylist():
        known = newest[row["plan"]]
        if known and (known[-1]["deleted"], known[-1]["unit_price"]) == (row["deleted"], row["unit_price"]):
            continue
        earlier = [each for each in known if each["source_at"] != row["source_at"]]
        if row["deleted"] and row["ends_at"] == row["source_at"] and (not earlier or earlier[-1]["deleted"]):
            # An end that somebody gave is believed, also one of this transaction: what follows it is the slip.
            given = [each["ends_at"] for each in known if each["deleted"] and each["source_at"] == row["source_at"]]
            row["ends_at"] = given[-1] if given else earlier[-1]["ends_at"] if earlier else START
        expected.append(row)
        known.append(row)
    assert found == expected


def log_of(
    edited: list[tuple[str, int | None, int | None]], transactions: list[int], restored: tuple[int, int] | None
) -> tuple[list[Told], int]:
    """What the log of changes tells once, in order, and from where on a connector may tell again since it was anew."""
    log: list[Told] = []
    states: list[dict[str, int]] = [{}]
    place, at, first = 1_000, START, 0
    lengths = iter(transactions)
    left = next(lengths, 1)
    for number, (plan, unit_price, hour) in enumerate(edited):
        if restored is not None and number == restored[0]:
            states[-1] = states[min(restored[1], number)]
            first, place, at = len(log), 1, at + timedelta(hours=1)
            left = next(lengths, 1)
            log += [row_of(known, said, None, place, at) for known, said in sorted(states[-1].items())]
            at += timedelta(seconds=1)
        now = dict(states[-1])
        place += 1
        if unit_price is not None:
            now[plan] = unit_price
            log.append(row_of(plan, unit_price, None, place, at))
        elif now.pop(plan, None) is not None:
            ends_at = at if hour is None else START + timedelta(hours=hour)
            log.append(row_of(plan, None, ends_at, place, at))
        states.append(now)
        left -= 1
        if left == 0:
            left, at = next(lengths, 1), at + timedelta(seconds=1)
    return log, first


def row_of(plan: str, unit_price: int | None, ends_at: datetime | None, place: int, at: datetime) -> Told:
    row: Told = prices([(plan, unit_price, 0, None)], 1).to_pylist()[0]
    return row | {"ends_at": ends_at, "source_lsn": place, "source_at": at}


def ends_of(*told: tuple[int | None, datetime | None, int, int]) -> list[datetime | None]:
    """The ends of the versions of one price (unit price, end, place, second of the commit), however batches are cut."""
    rows = [
        row_of("a", unit_price, ends_at, place, START + timedelta(hours=5, seconds=second)) | {"lsn": lsn}
        for lsn, (unit_price, ends_at, place, second) in enumerate(told, start=1)
    ]
    found: list[list[datetime | None]] = [
        versions_of(Table.PRICES, [pa.Table.from_pylist(part, schema=PRICES) for part in parts])["ends_at"].to_pylist()
        for parts in ([rows], [[row] for row in rows], [rows[:-1], rows[-1:]])
    ]
    assert found[0] == found[1] == found[2]
    return found[0]


COMMIT = [START + timedelta(hours=5, seconds=second) for second in range(3)]


def test_a_price_inserted_and_deleted_in_one_transaction_is_ignored() -> None:
    """A slip of who edits: with an end at its commit the price before it would not go on, and nobody be billed."""
    assert ends_of((1, None, 1, 0), (None, COMMIT[0], 2, 0)) == [None, START]
    assert ends_of((1, None, 1, 0), (2, None, 2, 0), (None, COMMIT[0], 3, 0)) == [None, None, START]
    again = (1, None, 3, 1), (None, COMMIT[1], 4, 1)
    assert ends_of((1, None, 1, 0), (None, COMMIT[0], 2, 0), *again)[-1] == START


def test_restoring_and_deleting_an_ended_price_keeps_its_first_end() -> None:
    said = START + timedelta(hours=2)
    assert ends_of((1, None, 1, 0), (None, said, 2, 1), (2, None, 3, 2), (None, COMMIT[2], 4, 2))[-1] == said


def test_an_existing_price_ends_when_its_transaction_deletes_it() -> None:
    there = (1, None, 1, 0)
    assert ends_of(there, (None, COMMIT[1], 2, 1)) == [None, COMMIT[1]]
    assert ends_of(there, (2, None, 2, 1), (None, COMMIT[1], 3, 1)) == [None, None, COMMIT[1]]
    # As `weir catalog reconcile` tells a deletion.
    assert ends_of(there, (1, None, 2, 1), (None, COMMIT[1], 3, 1)) == [None, COMMIT[1]]
    assert ends_of(there, (None, COMMIT[1], 2, 1), (2, None, 3, 1), (None, COMMIT[1], 4, 1))[-1] == COMMIT[1]


def test_an_explicit_end_of_a_price_is_believed_even_in_the_transaction_that_made_it() -> None:
    said = START + timedelta(hours=2)
    assert ends_of((1, None, 1, 0), (None, said, 2, 0)) == [None, said]
