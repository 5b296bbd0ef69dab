"""The comparison sees whatever a stack has otherwise than the truth says, field by field."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import psycopg
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from jobs.streams import JOURNAL
from tests.rules.test_traffic_prices import simpler
from tests.rules.test_traffic_truth import run
from traffic import compare, found, shapes
from traffic.meters import METERS
from traffic.truth import Truth, digest, truth_of

SOME_DAY = datetime(2026, 11, 3, tzinfo=UTC)
METERED = tuple(
    (meter, quantity, version)
    for meter, quantity, version in zip(
        METERS, (Decimal(1), None, Decimal(0), Decimal(7)), (5, None, None, 6), strict=True
    )
)


@lru_cache(maxsize=1)
def truth() -> Truth:
    return truth_of(run(7, records=600))


def as_the_truth_says() -> dict[str, list[Any]]:
    """What a stack without a fault has, by the function of `found` that reads it."""
    grace_seconds = truth()["policy"]["grace_seconds"]
    usage = [
        shapes.Usage(
            account=outcome["account"],
            request_id=outcome["request_id"],
            outcome=outcome["outcome"],
            model=outcome["model"],
            currency="EUR",
            window_start=SOME_DAY,
            day=date.fromisoformat(outcome["day"]),
            late_seconds=float(grace_seconds - 1 if outcome["request_id"] in truth()["late"] else -1),
            metered=tuple(
                (meter, None if quantity is None else Decimal(quantity), 5)
                for meter, quantity in outcome["quantities"].items()
            ),
        )
        for outcome in truth()["outcomes"]
    ]
    return {
        "records": [
            shapes.Record(r["digest"], r["disposition"], r["reason"], r["source"], r["id"]) for r in truth()["records"]
        ],
        "usage": usage,
        "windows": [shapes.window(total) for total in truth()["totals"]],
        "periods": [shapes.period(line) for line in truth()["periods"]],
        "late": list(found.late_of(usage, grace_seconds)),
        "stragglers": [shapes.straggler(straggler) for straggler in truth()["stragglers"]],
    }


def after_an_audit() -> dict[str, list[Any]]:
    """The same when an audit has taken back what was reversed, and put what is left."""
    rows = as_the_truth_says()
    left = {number: o["left"] for number, o in enumerate(truth()["outcomes"]) if "left" in o}
    for number, quantities in left.items():
        live = rows["usage"][number]
        rows["usage"].append(replace(live, sign=-1, cause="reversed"))
        if quantities is not None:
            metered = tuple((meter, units and Decimal(units), 5) for meter, units in quantities.items())
            rows["usage"].append(replace(live, metered=metered, cause="reversed"))
    taken = [
        replace(row, quantity=-row.quantity, amount=row.amount and -row.amount, cause="reversed")
        for row in rows["stragglers"]
    ]
    put = [replace(shapes.straggler(each), cause="reversed") for each in truth()["audited"]["stragglers"]]
    rows["stragglers"] += [*taken, *put]
    # Whether it is corrected where the truth does not know that.
    totals = map(shapes.window, truth()["audited"]["totals"])
    periods = map(shapes.period, truth()["audited"]["periods"])
    both: tuple[tuple[str, Iterable[Any]], ...] = ("windows", totals), ("periods", periods)
    for name, standing in both:
        rows[name] = [
            replace(row, corrected=n % 2 == 0) if row.corrected is None else row for n, row in enumerate(standing)
        ]
    return rows


def sources() -> tuple[list[shapes.Source], list[shapes.Run]]:
    """As `found.sources` reads them; a stack knows the last event's time also where the truth does not say it."""
    heard = [shapes.source(source) for source in truth()["sources"]]
    known = [replace(source, last_event_time=source.last_event_time or SOME_DAY) for source in heard]
    return known, [run for source in truth()["sources"] for run in shapes.runs(source)]


def sessions() -> dict[tuple[str, str], list[shapes.Session]]:
    return {
        (user["account"], user["user_id"]): [
            shapes.Session(
                datetime.fromisoformat(session["start"] or "2026-11-03T00:00:00Z"),
                datetime.fromisoformat(session["end"] or "2026-11-03T00:00:00Z"),
                session["events"],
            )
            for session in user["sessions"]
        ]
        for user in truth()["sessions"]
    }


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> Callable[..., compare.Comparison]:
    """The comparison of the truth with rows; what is not given is as the truth says."""
    monkeypatch.setattr(psycopg, "connect", lambda *_, **__: psycopg.Connection.__new__(psycopg.Connection))
    monkeypatch.setattr(psycopg.Connection, "__exit__", lambda *_: None)
    monkeypatch.setattr(psycopg.Connection, "__enter__", lambda connection: connection)

    def compared(asked: dict[str, Any] | None = None, *, audited: bool = False, **given: Any) -> compare.Comparison:
        there = {**as_the_truth_says(), "sessions": sessions(), "sources": sources(), "price_starts": {}, **given}
        for name, rows in there.items():
            monkeypatch.setattr(found, name, lambda *_, rows=rows: rows)
        return compare.compare(asked or truth(), "no database", "no tables", audited=audited)

    return compared


def changed(value: Any) -> Any:
    match value:
        case None | "":
            return "another"
        case bool():
            return not value
        case date():
            return value + (timedelta(milliseconds=1) if isinstance(value, datetime) else timedelta(days=1))
        case int() | float() | Decimal():
            return value + 1
        case str() | tuple():
            return value * 2
    raise AssertionError(f"cannot change {value!r}")


def test_a_stack_without_a_fault_is_equal(compared: Callable[..., compare.Comparison]) -> None:
    assert not compared().differences


def test_a_stack_without_a_fault_is_equal_after_an_audit(compared: Callable[..., compare.Comparison]) -> None:
    assert not compared(audited=True, **after_an_audit()).differences


def test_each_corrected_row_that_differs_is_seen_after_an_audit(compared: Callable[..., compare.Comparison]) -> None:
    rows = after_an_audit()
    usage = rows["usage"]
    corrections = [number for number, row in enumerate(usage) if row.cause == "reversed"]
    assert {usage[number].sign for number in corrections} == {1, -1}
    for number in corrections[:4]:
        without = [*usage[:number], *usage[number + 1 :]]
        twice = [*usage, usage[number]]
        turned = [*without, replace(usage[number], sign=-usage[number].sign)]
        for other in (without, twice, turned):
            assert not compared(audited=True, **{**rows, "usage": other}).is_equal
    for name in ("windows", "stragglers", "periods"):
        for number in (0, -1):
            row = rows[name][number]
            more = [each for each in rows[name] if each is not row] + [replace(row, quantity=row.quantity + 1)]
            assert not compared(audited=True, **{**rows, name: more}).is_equal


def test_whether_a_window_is_corrected_counts_where_the_truth_knows_it(
    compared: Callable[..., compare.Comparison],
) -> None:
    rows = after_an_audit()
    known = [shapes.window(total).corrected for total in truth()["audited"]["totals"]]
    assert None in known
    number = known.index(False)
    other = [replace(row, corrected=True) if n == number else row for n, row in enumerate(rows["windows"])]
    assert not compared(audited=True, **{**rows, "windows": other}).is_equal


def test_the_expected_result_has_audit_rows_only_after_an_audit(
    compared: Callable[..., compare.Comparison],
) -> None:
    early = compared(**{**as_the_truth_says(), "usage": after_an_audit()["usage"]})
    assert early.unexpected("rows of an audit") > 0
    assert any("--audited" in line for line in early.differences)
    names = {check.name for check in compared(audited=True, **as_the_truth_says()).checks if not check.is_equal}
    assert {"requests matched that stand", "quantities of requests that stand", "windows of requests"} <= names
    assert {"quantities of answers that stand", "windows of answers", "periods of active_users"} <= names
    for name in ("windows", "periods"):
        assert not compared(**{**as_the_truth_says(), name: after_an_audit()[name]}).is_equal


def test_a_truth_of_an_older_release_is_refused_after_an_audit(compared: Callable[..., compare.Comparison]) -> None:
    older = {name: said for name, said in truth().items() if name != "audited"}
    assert compared(older).is_equal
    with pytest.raises(ValueError, match="a release has written it before this one"):
        compared(older, audited=True)


def test_a_truth_that_forgets_a_credit_a_band_an_alias_or_a_prefix_is_found_wrong(
    compared: Callable[..., compare.Comparison],
) -> None:
    traffic = run(7, records=600)
    every = traffic.late.before.prices
    plain = tuple(price for price in every if not price.conditions)
    banded = tuple(price for price in every if not any(column == "context" for column, _ in price.conditions))
    named = tuple(price for price in every if not price.model.endswith("*"))
    for known in (
        simpler(traffic, prices=plain),
        simpler(traffic, prices=banded),
        simpler(traffic, aliases=()),
        simpler(traffic, prices=named),
    ):
        wrong = [check for check in compared(truth_of(known)).checks if not check.is_equal]
        assert any(check.name.startswith("windows of") and check.is_money for check in wrong)
    # The first one takes back a request that nobody sent, which is on no bill.
    left = tuple(taken for taken in traffic.taken_back if taken.request_id != traffic.taken_back[1].request_id)
    forgets = truth_of(replace(traffic, taken_back=left))
    assert compared(forgets).is_equal
    names = [check.name for check in compared(forgets, audited=True, **after_an_audit()).checks if not check.is_equal]
    assert any(name.startswith("windows of") for name in names)
    assert any(name.endswith("that stand") for name in names)


def test_an_answer_that_stands_beside_the_first_of_its_content_is_found_wrong(
    compared: Callable[..., compare.Comparison],
) -> None:
    rows, taken = after_an_audit(), {(o.account, o.request_id) for o in run(7, records=600).taken_back}
    others = [o for o in truth()["outcomes"] if "left" in o and (o["account"], o["request_id"]) not in taken]
    assert others
    for outcome in others:
        reported, left = (
            {meter: units and Decimal(units) for meter, units in outcome[name].items()}
            for name in ("quantities", "left")
        )
        assert left == {**reported, "answers": 0} != reported
        standing = [row for row in rows["usage"] if row.cause == "stream" or row.request_id != outcome["request_id"]]
        names = [c.name for c in compared(audited=True, **{**rows, "usage": standing}).checks if not c.is_equal]
        assert names == ["quantities of answers that stand"]


def of_an_older_release() -> dict[str, Any]:
    """A truth without prices, and with the numbers of events alone."""
    sums: dict[tuple[str, ...], list[Decimal]] = {}
    keys = ("account", "model", "meter", "currency", "window_start")
    for total in truth()["totals"]:
        of = sums.setdefault(tuple(total[key] for key in keys), [Decimal(0), Decimal(0)])
        of[:] = of[0] + Decimal(total["quantity"]), of[1] + Decimal(total["amount"])
    totals = [
        {**dict(zip(keys, key, strict=True)), "quantity": str(quantity), "amount": str(amount)}
        for key, (quantity, amount) in sums.items()
    ]
    users = [
        {
            "account": user["account"],
            "user_id": user["user_id"],
            "events": user["sessions"] and [session["events"] for session in user["sessions"]],
        }
        for user in truth()["sessions"]
    ]
    later = ("day", "quantities")
    outcomes = [{name: said for name, said in outcome.items() if name not in later} for outcome in truth()["outcomes"]]
    older = {**truth(), "totals": totals, "sessions": users, "outcomes": outcomes}
    del older["sources"], older["periods"]
    return older


def test_the_truth_of_an_older_release_is_compared_by_its_own_fields(
    compared: Callable[..., compare.Comparison],
) -> None:
    older = of_an_older_release()
    assert not compared(older).differences
    rows = as_the_truth_says()["windows"]
    assert not compared(older, windows=[replace(rows[0], amount=rows[0].amount + 1), *rows[1:]]).is_equal
    assert not compared(older, sessions={}).is_equal


@pytest.mark.parametrize(
    ("name", "field"),
    [
        (name, field.name)
        for name, row in (
            ("records", shapes.Record),
            ("windows", shapes.Window),
            ("periods", shapes.Period),
            ("late", shapes.Late),
            ("stragglers", shapes.Straggler),
        )
        for field in fields(row)
    ]
    + [("usage", field) for field in ("account", "request_id", "outcome", "model", "day", "metered")],
)
def test_one_row_that_differs_in_one_field_is_seen(
    compared: Callable[..., compare.Comparison], name: str, field: str
) -> None:
    rows = as_the_truth_says()[name]
    number = next(n for n, row in enumerate(rows) if getattr(row, "outcome", "abandoned") == "abandoned")
    other = replace(rows[number], **{field: changed(getattr(rows[number], field))})
    if name == "records" and field == "digest":
        other = replace(other, source="unknown")
    assert not compared(**{name: [*rows[:number], other, *rows[number + 1 :]]}).is_equal


@pytest.mark.parametrize("name", ["records", "windows", "periods", "late", "stragglers", "usage"])
def test_a_row_too_few_and_a_row_twice_are_seen(compared: Callable[..., compare.Comparison], name: str) -> None:
    rows = as_the_truth_says()[name]
    assert not compared(**{name: rows[1:]}).is_equal
    assert not compared(**{name: [*rows, rows[0]]}).is_equal


@pytest.mark.parametrize("field", ["start", "end", "events"])
def test_a_session_that_differs_is_seen(compared: Callable[..., compare.Comparison], field: str) -> None:
    user = next(user for user in truth()["sessions"] if user["sessions"][0]["start"])
    key = user["account"], user["user_id"]
    there = sessions()
    first, *others = there[key]
    assert not compared(
        sessions={**there, key: [replace(first, **{field: changed(getattr(first, field))}), *others]}
    ).is_equal
    assert not compared(sessions={**there, key: others}).is_equal


@pytest.mark.parametrize("field", [field.name for field in fields(shapes.Source)])
def test_a_source_that_differs_in_one_field_is_seen(compared: Callable[..., compare.Comparison], field: str) -> None:
    heard, runs = sources()
    number = next(n for n, source in enumerate(truth()["sources"]) if source["last_event_time"])
    other = replace(heard[number], **{field: changed(getattr(heard[number], field))})
    assert not compared(sources=([*heard[:number], other, *heard[number + 1 :]], runs)).is_equal
    assert not compared(sources=(heard[1:], runs)).is_equal
    assert not compared(sources=([*heard, heard[0]], runs)).is_equal


@pytest.mark.parametrize("field", [field.name for field in fields(shapes.Run)])
@pytest.mark.parametrize("arrived", [True, False])
def test_a_run_of_numbers_that_differs_is_seen(
    compared: Callable[..., compare.Comparison], field: str, arrived: bool
) -> None:
    heard, runs = sources()
    number = next(n for n, run in enumerate(runs) if run.arrived == arrived)
    other = replace(runs[number], **{field: changed(getattr(runs[number], field))})
    without = [*runs[:number], *runs[number + 1 :]]
    assert not compared(sources=(heard, [*without, other])).is_equal
    assert not compared(sources=(heard, without)).is_equal


def test_what_came_late_is_added_up_from_the_rows_of_usage_within_grace() -> None:
    row = shapes.Usage("a", "r", "matched", "m", "EUR", SOME_DAY, SOME_DAY.date(), 0.0, METERED)
    rows = [row, replace(row, late_seconds=299.9), replace(row, late_seconds=300.0), replace(row, late_seconds=-0.1)]
    assert list(found.late_of(rows, 300)) == [
        shapes.Late("a", "m", METERS[0], "EUR", SOME_DAY, 5, 2, Decimal(2)),
        shapes.Late("a", "m", METERS[3], "EUR", SOME_DAY, 6, 2, Decimal(14)),
    ]


@pytest.mark.parametrize("quantity", [None, Decimal("0.000001")])
def test_a_quantity_is_compared_to_its_last_digit_and_0_differs_from_none(
    compared: Callable[..., compare.Comparison], quantity: Decimal | None
) -> None:
    first, *rest = as_the_truth_says()["usage"]
    other = replace(first, metered=(*first.metered, ("gpu_seconds", quantity, 5)))
    assert compared(usage=[other, *rest]).unexpected("quantities of gpu_seconds") == 1
    row = next(row for row in rest if any(meter == "gpu_seconds" and said for meter, said, _ in row.metered))
    more = tuple((meter, said and said + Decimal("0.000001"), version) for meter, said, version in row.metered)
    others = [replace(each, metered=more) if each is row else each for each in rest]
    assert compared(usage=[first, *others]).unexpected("quantities of gpu_seconds") == 1


def test_a_window_of_an_unknown_price_is_distinguished_from_an_unpriced_window() -> None:
    class Stored:
        def execute(self, *_: Any) -> list[tuple[Any, ...]]:
            row = ("a", "m", METERS[0], "EUR", SOME_DAY)
            return [(*row, 7, Decimal("0.1"), 2, Decimal("0.2"), False), (*row, None, None, 2, Decimal(0), False)]

    of_nobody, unpriced = found.windows(cast("psycopg.Connection[Any]", Stored()), ["a"], {5: SOME_DAY})
    assert (of_nobody.price_from, of_nobody.unit_price) == (None, Decimal("0.1"))
    assert (unpriced.price_from, unpriced.unit_price) == (None, None)


@pytest.mark.parametrize("topic", ["events", "gateway"])
def test_a_record_too_large_to_store_is_not_confused_with_an_empty_one(topic: str, tmp_path: Path) -> None:
    sent_at = datetime.fromisoformat(truth()["started_at"])
    row = {"lsn": 1, "topic": topic, "partition": 0, "offset": 0, "disposition": "rejected"}
    row |= {"received_at": sent_at, "logged_at": sent_at, "log_date": sent_at.date()}
    rows = [{**row, "value": b"", "reason": "malformed"}, {**row, "value": None, "reason": "too_large"}]
    write_deltalake(tmp_path / "journal", pa.Table.from_pylist(rows, JOURNAL))
    empty = {"digest": digest(b""), "disposition": "rejected", "kind": "malformed", "reason": "malformed"}
    held = [(record.digest, record.reason) for record in found.records(str(tmp_path), {**truth(), "records": [empty]})]
    assert held == [(digest(b""), "malformed")]
