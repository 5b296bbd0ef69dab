"""Corrections: what changed a window that was shown closed, against a second computation one row at a time (I8)."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from importlib import import_module
from operator import itemgetter
from typing import Any

import psycopg
import pytest

from jobs.billing.config import BillingConfig
from jobs.runtime.postgres import migrations
from jobs.runtime.postgres.meters_table import declare
from metering.meters import Meter
from metering.vocabulary import LatePolicy, Outcome, UsageCause
from metering.windows import MINUTE
from tests.database_rows import write
from tests.pipelines.billing import CONFIG, MICROSECOND, NOON, Price, bill, billed, stored, usage_row
from tests.pipelines.folding import rows_of

GRACE = timedelta(seconds=CONFIG.grace_seconds)
LATE = MINUTE + GRACE
"""Of an event at NOON: its window's grace is over."""
DROP_OUTPUT = BillingConfig(late_policy={Meter.OUTPUT_TOKENS: LatePolicy.DROP})
DROP_ALL = BillingConfig(late_policy=dict.fromkeys(Meter, LatePolicy.DROP))
PRICES = (None, Price(3, Decimal("0.000000000001")), Price(9, Decimal("0.123456789012")))
Row = dict[str, Any]


def close_until(database: str, at: datetime) -> None:
    """Show windows closed that end at `at` or before."""
    now = datetime.now(UTC)
    with psycopg.connect(database) as connection:
        declare(connection, CONFIG.declared)
    owner = {"epoch": 1, "owner_pid": 1, "owner_started_at": now, "started_at": now, "state": "running"}
    config = psycopg.types.json.Jsonb(CONFIG.model_dump(mode="json"))
    write(database, "jobs", {"job": "billing", **owner, "config": config})
    write(database, "positions", {"job": "billing", "input": "usage", "next_position": 1, "frontier": at + GRACE})


def corrections(connection: psycopg.Connection[Any]) -> list[Row]:
    rows = rows_of(connection, "SELECT * FROM corrections ORDER BY number")
    return [{name: value for name, value in row.items() if name != "number"} for row in rows]


class History:
    """Random usage: outcomes, and rows that take them back or put others in their place, once or twice over."""

    def __init__(self, seed: int, on_time: int = 0) -> None:
        """The first `on_time` rows come on time, and all others then after grace; 0: they come in any order."""
        self.chance = random.Random(seed)
        self.rows: list[Row] = []
        self._said: dict[int, Row] = {}
        for _ in range(on_time):
            self._decide(MINUTE / 2)
        for _ in range(150):
            if self.chance.random() < 0.7 or not self._said:
                self._decide(LATE if on_time else self._any_delay())
            elif self.chance.random() < 0.5 or len(self._said) == 1:
                self._correct()
            else:
                self._restate()

    def _any_delay(self) -> timedelta:
        edge = self.chance.choice([MINUTE, LATE, timedelta(seconds=self.chance.randint(0, 900))])
        return edge + self.chance.randint(-1, 1) * MICROSECOND

    def _decide(self, delay: timedelta) -> None:
        tokens = self.chance.choice([None, 0, 1, self.chance.randint(1, 10**10)])
        self._add(
            {
                "event_time": NOON + self.chance.randint(0, 1) * MINUTE,
                "delay": delay,
                "price": self.chance.choice(PRICES),
                "quantities": {Meter.REQUESTS: 1, Meter.INPUT_TOKENS: tokens, Meter.OUTPUT_TOKENS: 7},
                "account": self.chance.choice(["acme", "bolt"]),
                "dimensions": self.chance.choice([None, '{"region":"eu"}', '{"region":"us"}']),
            }
        )

    def _correct(self) -> None:
        corrected = self.chance.choice(sorted(self._said))
        said = self._said.pop(corrected)
        cause = self.chance.choice([UsageCause.DUPLICATE, UsageCause.REPRICED])
        inherits = {"cause": cause.value, "corrects_lsns": [corrected]}
        self._add({**said, **inherits, "sign": -1}, stays=False)
        if cause is UsageCause.REPRICED:
            self._add({**said, **inherits, "price": self.chance.choice(PRICES)})

    def _restate(self) -> None:
        """One report takes the place of two that were billed."""
        named = self.chance.sample(sorted(self._said), 2)
        corrected = {lsn: self._said.pop(lsn) for lsn in named}
        for lsn, said in corrected.items():
            self._add({**said, "cause": "restated", "corrects_lsns": [lsn], "sign": -1}, stays=False)
        self._add({**corrected[named[0]], "cause": "restated", "corrects_lsns": sorted(named)})

    def _add(self, said: Row, *, stays: bool = True) -> None:
        lsn = len(self.rows) + 1
        self.rows.append(usage_row(lsn, **said))
        if stays:
            self._said[lsn] = said


@pytest.mark.parametrize("config", [CONFIG, DROP_OUTPUT, DROP_ALL], ids=["correct", "drop", "drop all"])
@pytest.mark.parametrize("seed", range(3))
def test_oracle_corrections_inherit_decisions_and_any_cut_bills_the_same(
    database: str, connection: psycopg.Connection[Any], seed: int, config: BillingConfig
) -> None:
    closed_until = NOON + MINUTE
    close_until(database, closed_until)
    history = History(seed)
    rows = history.rows
    cuts = sorted(history.chance.sample(range(len(rows)), 6))
    for start, end in zip([0, *cuts], [*cuts, len(rows)], strict=True):
        bill(connection, rows[start:end], config)
    expected = billed(rows, config, closed_until)
    found = stored(connection)
    assert found.stragglers == expected.stragglers
    assert found.windows == expected.windows
    made = corrections(connection)
    told = [(lsn, one["meter"]) for one in made for lsn in one["usage_lsns"]]
    assert sorted(told) == sorted(expected.corrections), "each row that corrects is in one correction"
    assert {lsn for lsn, _ in told} & {row["lsn"] for row in rows if row["cause"] != "stream"}
    explains_every_window(rows, expected.corrections, made, found.windows, expected.dropped)


def explains_every_window(
    rows: Iterable[Row], correcting: set[Any], made: list[Row], windows: dict[Any, Row], dropped: set[Any]
) -> None:
    """I8: what a window was without its corrections, and what each of them made of it, is what it is."""
    was: defaultdict[Any, list[Decimal]] = defaultdict(lambda: [Decimal(0), Decimal(0)])
    for row in rows:
        for meter in Meter:
            if (row["lsn"], meter.value) not in correcting | dropped and row.get(meter):
                key = (row["event_time"].replace(second=0), row["account"], row["model"], meter.value, row["currency"])
                was[key][0] += row["sign"] * row[meter]
                was[key][1] += row["sign"] * (row.get(f"{meter}_amount") or 0)
    for one in made:
        key = tuple(one[name] for name in WINDOW)
        was[key][0] += one["new_quantity"] - one["old_quantity"]
        was[key][1] += (one["new_amount"] or 0) - (one["old_amount"] or 0)
    now: defaultdict[Any, list[Decimal]] = defaultdict(lambda: [Decimal(0), Decimal(0)])
    for key, cell in windows.items():
        now[key[:5]][0] += cell["quantity"]
        now[key[:5]][1] += cell["amount"] or 0
    assert {key: sums for key, sums in was.items() if any(sums)} == {k: sums for k, sums in now.items() if any(sums)}


@pytest.mark.parametrize("seed", range(3))
def test_oracle_corrections_of_a_window_chain_up_to_its_value(
    database: str, connection: psycopg.Connection[Any], seed: int
) -> None:
    close_until(database, NOON + 2 * MINUTE)
    history = History(seed, on_time=50)
    rows = history.rows
    cuts = sorted(history.chance.sample(range(50, len(rows)), 4))
    bill(connection, rows[:50])
    left = {key: (cell["quantity"], cell["amount"]) for key, cell in _by_window(connection).items()}
    for start, end in zip([50, *cuts], [*cuts, len(rows)], strict=True):
        bill(connection, rows[start:end])
    for one in corrections(connection):
        key = tuple(one[name] for name in WINDOW)
        assert (one["old_quantity"], one["old_amount"]) == left.get(key, (0, None))
        left[key] = (one["new_quantity"], one["new_amount"])
    assert left == {key: (cell["quantity"], cell["amount"]) for key, cell in _by_window(connection).items()}


WINDOW = ("window_start", "account", "model", "meter", "currency")


def _by_window(connection: psycopg.Connection[Any]) -> dict[tuple[Any, ...], Row]:
    """The windows, all price versions of each together; of one that only counts what was not reported, nothing."""
    names = ", ".join(WINDOW)
    found = rows_of(
        connection,
        f"SELECT {names}, trim_scale(sum(quantity)) AS quantity, sum(amount) AS amount FROM usage_windows "
        f"GROUP BY {names} HAVING bool_or(quantity <> 0 OR corrected)",
    )
    return {tuple(row[name] for name in WINDOW): row for row in found}


def test_a_straggler_records_its_window_before_and_after(connection: psycopg.Connection[Any]) -> None:
    on_time = usage_row(1, outcome=Outcome.ABANDONED)
    late = usage_row(2, NOON, LATE, price=Price(9, Decimal("0.5")), outcome=Outcome.ABANDONED)
    bill(connection, [on_time])
    bill(connection, [late, usage_row(3, NOON, LATE, price=None, outcome=Outcome.ABANDONED)])
    first, second = corrections(connection)
    assert (first["usage_lsns"], first["cause"], first["decision"]) == ([2], "stream", "correct")
    old = Decimal("0.000003141593")
    assert (first["old_quantity"], first["new_quantity"]) == (1, 2)
    assert (first["old_amount"], first["new_amount"]) == (old, old + Decimal("0.5"))
    assert (second["old_quantity"], second["new_quantity"]) == (2, 3)
    assert second["old_amount"] == second["new_amount"] == first["new_amount"]


def test_stragglers_of_an_earlier_release_get_the_corrections_that_they_were(
    connection: psycopg.Connection[Any],
) -> None:
    """Method: what billing made of stragglers that came after all else, and what migration 0024 makes of them."""
    chance = random.Random(3)
    rows = [
        usage_row(
            lsn,
            NOON + chance.randint(0, 2) * MINUTE,
            MINUTE / 2 if lsn <= 40 else LATE + 3 * MINUTE,
            price=chance.choice(PRICES),
            quantities={Meter.REQUESTS: 1, Meter.OUTPUT_TOKENS: chance.randint(0, 9)},
            account=chance.choice(["acme", "bolt"]),
        )
        for lsn in range(1, 101)
    ]
    # A window that had nothing with a price.
    for lsn, price in ((101, None), (102, PRICES[1])):
        rows.append(usage_row(lsn, NOON, LATE + MINUTE, price=price, model="new"))
    for cut in (slice(0, 40), slice(40, 70), slice(70, 102)):
        bill(connection, rows[cut], DROP_OUTPUT)
    with connection.transaction():
        made = sorted(corrections(connection), key=itemgetter("usage_lsn", "meter"))
        connection.execute("DELETE FROM corrections")
        connection.execute(import_module(f"{migrations.__name__}.versions.0024_corrections").FILL)
    assert any(one["old_amount"] is None for one in made)
    assert sorted(corrections(connection), key=itemgetter("usage_lsn", "meter")) == made


def test_a_window_that_had_nothing_was_0_and_had_no_amount(connection: psycopg.Connection[Any]) -> None:
    unpriced = usage_row(1, NOON, LATE, price=None, outcome=Outcome.ABANDONED)
    bill(connection, [unpriced, usage_row(2, NOON, LATE, outcome=Outcome.ABANDONED)])
    first, second = corrections(connection)
    assert [first[name] for name in ("old_quantity", "new_quantity", "old_amount", "new_amount")] == [0, 1, None, None]
    assert (second["old_amount"], second["new_amount"]) == (None, Decimal("0.000003141593"))


def test_what_is_dropped_corrects_nothing(connection: psycopg.Connection[Any]) -> None:
    bill(connection, [usage_row(1, NOON, LATE, quantities={Meter.OUTPUT_TOKENS: 5})], DROP_OUTPUT)
    assert {one["meter"] for one in corrections(connection)} == set()


@pytest.mark.parametrize("is_closed", [False, True], ids=["open", "closed"])
def test_a_reversal_is_a_correction_only_in_a_closed_window(
    database: str, connection: psycopg.Connection[Any], *, is_closed: bool
) -> None:
    close_until(database, NOON + MINUTE if is_closed else NOON + MINUTE - MICROSECOND)
    bill(connection, [usage_row(1, outcome=Outcome.ABANDONED)])
    bill(connection, [taken_back(2, 1)])
    [cell] = stored(connection).windows.values()
    assert (cell["quantity"], cell["corrected"]) == (0, is_closed)
    found = [(one["usage_lsns"], one["cause"], one["old_quantity"]) for one in corrections(connection)]
    assert found == ([([2], "duplicate", 1)] if is_closed else [])


@pytest.mark.parametrize("cut", [[1, 2], [3]], ids=["later", "in one batch"])
def test_only_the_refund_of_dropped_usage_is_dropped(connection: psycopg.Connection[Any], cut: list[int]) -> None:
    """I6: signed usage is windows and what was dropped, whatever takes back what."""
    quantities = {Meter.REQUESTS: 1, Meter.OUTPUT_TOKENS: 5}
    straggler = usage_row(1, NOON, LATE, quantities=quantities)
    refund = taken_back(2, 1, received_at=NOON, quantities=quantities)
    again = taken_back(3, 2, sign=1, received_at=NOON, quantities=quantities)
    rows = [straggler, refund, again]
    for count in cut:
        bill(connection, rows[:count], DROP_OUTPUT)
        rows = rows[count:]
    bill(connection, rows, DROP_OUTPUT)
    found = stored(connection)
    decided = {key: (one["decision"], one["quantity"], one["late_seconds"]) for key, one in found.stragglers.items()}
    late_seconds = GRACE.total_seconds()
    assert decided == {
        (1, "requests"): ("correct", 1, late_seconds),
        (1, "output_tokens"): ("drop", 5, late_seconds),
        (2, "requests"): ("correct", -1, 0),
        (2, "output_tokens"): ("drop", -5, 0),
        (3, "requests"): ("correct", 1, 0),
        (3, "output_tokens"): ("drop", 5, 0),
    }
    assert {key[3]: cell["quantity"] for key, cell in found.windows.items() if cell["quantity"]} == {"requests": 1}


@pytest.mark.parametrize("cut", [1, 2], ids=["later", "in one batch"])
def test_no_decision_is_inherited_for_quantities_that_were_not_reported(
    connection: psycopg.Connection[Any], cut: int
) -> None:
    """A straggler without a quantity leaves no row, so what comes in its place cannot depend on how usage is cut."""
    unreported = {Meter.REQUESTS: 1, Meter.OUTPUT_TOKENS: None}
    replaces: Row = {"cause": "schema_added", "corrects_lsns": [1]}
    rows = [
        usage_row(1, NOON, LATE, quantities=unreported),
        usage_row(2, NOON, LATE, quantities={Meter.OUTPUT_TOKENS: 5}, **replaces),
        taken_back(3, 1, quantities=unreported, outcome=Outcome.MATCHED),
    ]
    for part in (rows[:cut], rows[cut:]):
        bill(connection, part, DROP_OUTPUT)
    windows = {key[3]: cell for key, cell in stored(connection).windows.items()}
    assert (windows["output_tokens"]["quantity"], windows["output_tokens"]["unmetered_rows"]) == (5, 0)


@pytest.mark.parametrize("policy", [LatePolicy.DROP, LatePolicy.HOLD])
@pytest.mark.parametrize("cut", [2, 3, 4, 5], ids=["before", "in between", "before the new row", "in one batch"])
def test_a_late_better_report_replaces_a_timely_one(
    connection: psycopg.Connection[Any], cut: int, policy: LatePolicy
) -> None:
    """With all that it reports, and not only with what the first did: a gateway may estimate the output alone."""
    config = BillingConfig(late_policy={Meter.OUTPUT_TOKENS: policy, Meter.INPUT_TOKENS: policy})
    estimated = {Meter.OUTPUT_TOKENS: 40}
    final = {Meter.OUTPUT_TOKENS: 100, Meter.INPUT_TOKENS: 9}
    restated: Row = {"cause": "restated"}
    rows = [
        usage_row(1, quantities=estimated),
        usage_row(2, NOON, LATE, quantities=final),
        taken_back(3, 1, quantities=estimated, **restated),
        taken_back(4, 2, quantities=final, **restated),
        usage_row(5, NOON, LATE, quantities=final, corrects_lsns=[1, 2], **restated),
    ]
    for part in (rows[:cut], rows[cut:]):
        bill(connection, part, config)
    found = stored(connection)
    billed = {key[3]: cell["quantity"] for key, cell in found.windows.items() if cell["quantity"]}
    assert billed == {"output_tokens": 100, "input_tokens": 9}
    assert {key: one["quantity"] for key, one in found.stragglers.items()} == {
        (2, "output_tokens"): 100,
        (4, "output_tokens"): -100,
        (2, "input_tokens"): 9,
        (4, "input_tokens"): -9,
    }


def test_a_row_that_replaces_a_dropped_and_a_billed_one_is_billed(
    connection: psycopg.Connection[Any],
) -> None:
    late = [usage_row(lsn, NOON, LATE, outcome=Outcome.ABANDONED) for lsn in (1, 2)]
    bill(connection, late[:1], DROP_ALL)
    bill(connection, late[1:], CONFIG)
    both = usage_row(5, NOON, LATE, outcome=Outcome.ABANDONED, cause="rejoined", corrects_lsns=[1, 2])
    bill(connection, [taken_back(3, 1), taken_back(4, 2), both])
    assert [cell["quantity"] for cell in stored(connection).windows.values()] == [1]


@pytest.mark.parametrize(("abandoned", "orphaned"), [(1, 2), (2, 1)])
def test_a_pair_that_was_billed_apart_is_one_correction_of_each_window(
    database: str, connection: psycopg.Connection[Any], abandoned: int, orphaned: int
) -> None:
    close_until(database, NOON + MINUTE)
    tokens = {Meter.OUTPUT_TOKENS: 5}
    parts = [
        usage_row(abandoned, outcome=Outcome.ABANDONED),
        usage_row(orphaned, quantities=tokens, outcome=Outcome.ORPHANED),
    ]
    bill(connection, sorted(parts, key=lambda row: row["lsn"]))
    rejoined: Row = {"cause": "rejoined", "corrects_lsns": [abandoned, orphaned]}
    bill(
        connection,
        [
            taken_back(3, abandoned, cause="rejoined"),
            taken_back(4, orphaned, cause="rejoined", quantities=tokens, outcome=Outcome.ORPHANED),
            usage_row(5, quantities={Meter.REQUESTS: 1, **tokens}, **rejoined),
        ],
    )
    columns = ("usage_lsns", "old_quantity", "new_quantity")
    found = {one["meter"]: tuple(one[name] for name in columns) for one in corrections(connection)}
    assert found == {"requests": ([3, 5], 1, 1), "output_tokens": ([4, 5], 5, 5)}


def test_a_rejoined_pair_inherits_decisions_per_meter(
    connection: psycopg.Connection[Any],
) -> None:
    """`requests` from the abandoned request, tokens from the orphaned completion."""
    drop = BillingConfig(late_policy=dict.fromkeys([Meter.REQUESTS, Meter.OUTPUT_TOKENS], LatePolicy.DROP))
    orphan: Row = {"price": None, "model": None, "outcome": Outcome.ORPHANED}
    abandoned = usage_row(1, outcome=Outcome.ABANDONED)
    orphaned = usage_row(2, NOON, LATE, quantities={Meter.REQUESTS: 0, Meter.OUTPUT_TOKENS: 5}, **orphan)
    bill(connection, [abandoned, orphaned], drop)
    both = {Meter.REQUESTS: 1, Meter.OUTPUT_TOKENS: 5}
    bill(
        connection,
        [
            taken_back(3, 1, cause="rejoined"),
            taken_back(4, 2, cause="rejoined", quantities={Meter.OUTPUT_TOKENS: 5}, **orphan),
            usage_row(5, NOON, LATE, quantities=both, cause="rejoined", corrects_lsns=[1, 2]),
        ],
        drop,
    )
    found = stored(connection)
    assert {key: one["decision"] for key, one in found.stragglers.items()} == dict.fromkeys(
        [(2, "output_tokens"), (4, "output_tokens"), (5, "output_tokens")], "drop"
    )
    assert {key[3]: cell["quantity"] for key, cell in found.windows.items() if cell["quantity"]} == {"requests": 1}


def test_a_late_price_corrects_both_of_its_rows_at_once(database: str, connection: psycopg.Connection[Any]) -> None:
    close_until(database, NOON + MINUTE)
    bill(connection, [usage_row(1, outcome=Outcome.ABANDONED)])
    dearer = usage_row(3, price=Price(9, Decimal(2)), outcome=Outcome.ABANDONED, cause="repriced", corrects_lsns=[1])
    bill(connection, [taken_back(2, 1, cause="repriced"), dearer])
    [found] = corrections(connection)
    assert found["usage_lsns"] == [2, 3]
    assert (found["old_quantity"], found["new_quantity"]) == (1, 1)
    assert (found["old_amount"], found["new_amount"]) == (Decimal("0.000003141593"), Decimal(2))


def taken_back(lsn: int, corrected: int, **other: Any) -> Row:
    said: Row = {"outcome": Outcome.ABANDONED, "sign": -1, "cause": "duplicate", "corrects_lsns": [corrected]}
    return usage_row(lsn, **{**said, **other})
