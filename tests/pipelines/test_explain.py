"""`weir explain`, over real tables and a real database. Oracle: all explanations together make what is billed."""

from __future__ import annotations

import io
import json
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from psycopg.types.json import Jsonb
from typer.testing import CliRunner, Result

from cli.explain.printing import print_explanation
from cli.explain.query import ExplainQuery, explanation
from cli.main import app, main
from cli.reading import read_only
from deployment.errors import CannotRun
from jobs.explain.files import Files
from jobs.queries.usage import UsageQuery, usage_rows
from jobs.streams import AUTHOR, JOURNAL, SOURCE, Table
from jobs.streams import PRICES as PRICES_SCHEMA
from metering.instants import rfc3339
from metering.meters import Meter
from metering.plan_terms import PLAN_MODEL
from metering.windows import MINUTE
from tests.database_rows import write
from tests.pipelines.billing import EXACT, NOON, bill, usage_row
from tests.pipelines.explaining import (
    CONFIG,
    GRACE,
    PRICES,
    Metered,
    bill_all,
    commit,
    price_record,
    price_version,
    record,
    stored_usage,
)
from tests.streaming.test_object_store import store

__all__ = ["store"]

KEY = ("window_start", "account", "model", "meter", "currency")
AMOUNTS = ("quantity", "amount", "unpriced_quantity")


def explained(database: str, tables: Path | str, question: ExplainQuery) -> dict[str, Any]:
    with read_only(database) as connection:
        return explanation(connection, str(tables), question)


def shown(database: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    with read_only(database) as connection:
        # A row of nothing only counts requests that did not report its meter.
        rows = [row for row in usage_rows(connection, UsageQuery()) if any(row[name] for name in AMOUNTS)]
        return {tuple(row[name] for name in KEY): dict(row) for row in rows}


@pytest.mark.few_in_ci(1)
@pytest.mark.parametrize("seed", range(3))
def test_oracle_requests_sum_up_to_every_window(database: str, tmp_path: Path, seed: int) -> None:
    history = Metered(seed)
    history.store(database, tmp_path)
    made: defaultdict[tuple[Any, ...], list[Decimal]] = defaultdict(lambda: [Decimal(0)] * 3)
    seen: set[int] = set()
    for request_id in sorted({row["request_id"] for row in history.usage}):
        found = explained(database, tmp_path, ExplainQuery(request_id))
        assert found["adds_up"], found["differences"]
        for window in found["windows"]:
            assert window["usage_lsns"], "a window that it adds nothing to"
            key = tuple(window[name] for name in KEY)
            made[key] = [
                EXACT.add(was, window["contribution"][name]) for was, name in zip(made[key], AMOUNTS, strict=True)
            ]
        mine = [row["lsn"] for row in history.journal if row.get("request_id") == request_id]
        assert [row["lsn"] for row in found["records"]] == mine
        assert [row["lsn"] for row in found["usage"]] == [
            row["lsn"] for row in history.usage if row["request_id"] == request_id
        ]
        seen.update(mine)
    stored = shown(database)
    assert {key: sums for key, sums in made.items() if any(sums)} == {
        key: [row[name] for name in AMOUNTS] for key, row in stored.items()
    }
    assert seen == {row["lsn"] for row in history.journal if row["topic"] == "events"}


@pytest.mark.few_in_ci(1)
@pytest.mark.parametrize("seed", range(3))
def test_oracle_each_window_is_its_usage_and_is_what_weir_usage_shows(database: str, tmp_path: Path, seed: int) -> None:
    Metered(seed).store(database, tmp_path)
    stored = shown(database)
    for start, account in sorted({key[:2] for key in stored}):
        found = explained(database, tmp_path, ExplainQuery(window=start + MINUTE / 2, accounts=(account,)))
        assert found["adds_up"], found["differences"]
        rows = {tuple(row[name] for name in KEY): row for row in found["windows"]}
        mine = {key: row for key, row in stored.items() if key[:2] == (start, account)}
        for key, row in mine.items():
            told = rows[key]
            assert {name: told[name] for name in (*AMOUNTS, "state")} == {
                name: row[name] for name in (*AMOUNTS, "state")
            }
            assert {name: told["contribution"][name] for name in AMOUNTS} == {name: row[name] for name in AMOUNTS}
        assert all(row["quantity"] == 0 for key, row in rows.items() if key not in mine)


EVENT_TIME = NOON + timedelta(seconds=7)
LATE = 3 * GRACE


class Told:
    """A small history, record by record and row by row."""

    def __init__(self, database: str, tables: Path | str) -> None:
        self.database, self.tables = database, tables

    def journal(self, *rows: dict[str, Any]) -> None:
        commit(self.tables, Table.JOURNAL, rows)

    def usage(self, *rows: dict[str, Any], billed: int | None = None) -> None:
        """Rows of usage, of which billing has read the first `billed` (None: all)."""
        commit(self.tables, Table.USAGE, map(stored_usage, rows))
        bill_all(self.database, list(rows[:billed]))

    def explain(self, *args: Any, **question: Any) -> dict[str, Any]:
        return explained(self.database, self.tables, ExplainQuery(*args, **question))


@pytest.fixture
def told(database: str, tmp_path: Path) -> Told:
    return Told(database, tmp_path)


def event(lsn: int, **more: Any) -> dict[str, Any]:
    """A record received soon after it occurred; `request_id` r and the account acme, if nothing else is said."""
    said = {"account": "acme", "request_id": "r", "id": f"e{lsn}", "source": "s", "family": "request", "user_id": "u"}
    received_at = more.pop("received_at", EVENT_TIME + timedelta(seconds=lsn))
    return record(lsn, received_at, event_time=EVENT_TIME, **{**said, **more})


def of_r(lsn: int = 1, delay: timedelta = timedelta(seconds=9), **more: Any) -> dict[str, Any]:
    """Usage of request r."""
    said = {"request_id": "r", "request_lsn": 4, "completion_lsn": 5, "plan": "p", "price": PRICES[1]}
    return usage_row(lsn, EVENT_TIME, delay, **{**said, **more})


def test_a_request_is_explained_with_every_record_that_concerns_it(told: Told) -> None:
    told.journal(
        event(4),
        event(5, family="completion"),
        event(6, disposition="duplicate", first_lsn=5),
        event(7, disposition="conflict", first_lsn=4, request_id="another"),
        event(8, disposition="rejected", reason="too_old"),
        event(9, request_id="another"),
    )
    told.usage(of_r())
    found = told.explain("r")
    assert [(row["lsn"], row["disposition"], row["reason"]) for row in found["records"]] == [
        (4, "accepted", None),
        (5, "accepted", None),
        (6, "duplicate", None),
        (7, "conflict", None),
        (8, "rejected", "too_old"),
    ]
    (outcome,) = found["outcomes"]
    assert (outcome["outcome"], outcome["request_lsn"], outcome["completion_lsn"]) == ("matched", 4, 5)
    assert outcome["usage_lsns"] == [1]
    (line,) = found["line"]
    assert (line["month"], line["quantity"], line["contribution"]["quantity"]) == ("2026-03", 1, 1)
    assert line["amount"] == line["contribution"]["amount"] == PRICES[1].unit_price


def test_the_id_of_an_event_leads_to_its_outcome_and_from_a_repeat_to_its_first(told: Told) -> None:
    told.journal(
        event(4, id="first"),
        event(5, family="completion"),
        event(6, id="again", disposition="duplicate", first_lsn=4, received_at=NOON + timedelta(days=2)),
    )
    told.usage(of_r(), of_r(2, request_id="other", request_lsn=90, completion_lsn=91))
    for name in ("first", "again"):
        found = told.explain(name)
        assert [row["lsn"] for row in found["records"]] == [4, 5, 6]
        assert [row["lsn"] for row in found["usage"]] == [1]
        assert [row["contribution"]["quantity"] for row in found["windows"]] == [1]
        assert [row["quantity"] for row in found["windows"]] == [2]


def test_a_waiting_or_rejected_record_is_explained_as_on_no_bill(told: Told) -> None:
    told.journal(event(4), event(5, request_id=None, id="broken", disposition="rejected", reason="malformed"))
    for name, lsn in (("r", 4), ("broken", 5)):
        found = told.explain(name)
        assert [row["lsn"] for row in found["records"]] == [lsn]
        assert (found["usage"], found["outcomes"], found["windows"], found["line"]) == ([], [], [], None)


def test_a_value_that_is_no_text_is_given_in_base64(told: Told) -> None:
    told.journal(event(4, value=b"\xff\x00"), event(5, value="é".encode()), event(6, value=None))
    first, second, third = told.explain("r")["records"]
    assert (first["value"], first["value_base64"]) == (None, "/wA=")
    assert second["value"] == "é"
    assert "value_base64" not in second
    assert third["value"] is None


def test_an_account_and_a_period_select_among_requests_of_one_id(told: Told) -> None:
    later = NOON + timedelta(days=30)
    told.journal(event(4), event(5, account="bolt"), event(6, received_at=later))
    assert [row["lsn"] for row in told.explain("r", accounts=("bolt",))["records"]] == [5]
    assert [row["lsn"] for row in told.explain("r", start=later)["records"]] == [6]
    assert [row["lsn"] for row in told.explain("r", end=later)["records"]] == [4, 5]
    assert [row["lsn"] for row in told.explain("r")["records"]] == [4, 5, 6]
    with pytest.raises(CannotRun, match="No request or event of the id r of acme was received since"):
        told.explain("r", accounts=("acme",), start=later + timedelta(days=1))


def test_records_older_than_35_days_before_the_newest_are_searched_only_on_request(told: Told) -> None:
    newest = EVENT_TIME + timedelta(days=36)
    told.journal(event(4), event(5, request_id="x", received_at=newest))
    with pytest.raises(CannotRun, match="--from"):
        told.explain("r")
    assert [row["lsn"] for row in told.explain("r", start=EVENT_TIME)["records"]] == [4]


def test_only_files_that_can_hold_an_answer_are_read(told: Told, tmp_path: Path) -> None:
    told.journal(*(event(lsn, request_id="x", log_date=NOON.date() - timedelta(days=60)) for lsn in (1, 2)))
    told.journal(event(4), event(5, family="completion"))
    told.usage(of_r(delay=LATE, price=None))
    for file in (tmp_path / "journal").glob("log_date=2025*/*.parquet"):
        file.write_bytes(b"no table")
    assert told.explain(straggler=1)["adds_up"]
    assert told.explain(window=NOON, accounts=("acme",))["adds_up"]
    assert [row["lsn"] for row in told.explain("r", start=EVENT_TIME + timedelta(seconds=3))["records"]] == [4, 5]


def test_a_file_without_statistics_is_always_read(tmp_path: Path) -> None:
    rows = [{name: row.get(name) for name in JOURNAL.names} for row in (event(4), event(5))]
    without = {"delta.dataSkippingNumIndexedCols": "0"}
    write_deltalake(str(tmp_path), pa.Table.from_pylist(rows, JOURNAL), configuration=without)
    files = Files.of(DeltaTable(tmp_path), Table.JOURNAL)
    assert files.latest("received_at") is None
    for some in (files, files.between("received_at", NOON + timedelta(days=9), None).between("lsn", None, 1)):
        assert some.by_lsn([5, 6], ["lsn"])["lsn"].to_list() == [5]


def test_usage_that_billing_has_not_read_is_in_no_window(told: Told) -> None:
    told.journal(event(4), event(5, family="completion"))
    told.usage(of_r(), of_r(2, request_id="second", request_lsn=6, completion_lsn=7), billed=1)
    found = told.explain("second")
    assert [row["is_billed"] for row in found["usage"]] == [False]
    assert [row["contribution"]["quantity"] for row in found["windows"]] == [0]
    whole = told.explain(window=EVENT_TIME, accounts=("acme",))
    assert whole["adds_up"]
    assert [row["is_billed"] for row in whole["usage"]] == [True, False]


def test_a_price_is_explained_with_its_record_and_its_commit_time(told: Told) -> None:
    told.journal(price_record(PRICES[1]), event(4), event(5, family="completion"))
    commit(told.tables, Table.PRICES, [price_version(PRICES[1])])
    told.usage(of_r())
    (price,) = told.explain("r")["prices"]
    assert (price["price_version"], price["unit_price"]) == (2, PRICES[1].unit_price)
    assert (price["reported_by"], price["committed_at"]) == ("weir", NOON - timedelta(days=9))
    assert price["told_by"] == "weir", "as 0.2.0 names it"
    assert (price["record"]["topic"], price["record"]["lsn"]) == ("catalog.prices", 2)


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ({"changed_by": "ann@finance", "changed_at": NOON}, "changed by ann@finance, 2026-03-01T12:00:00Z"),
        ({}, "changed by unknown (of a release that did not keep it)"),
        ({"deleted": True}, "changed by unknown (a deleted row no longer has it)"),
    ],
)
def test_a_price_is_explained_with_its_author_and_the_time_of_the_change(
    told: Told, version: dict[str, Any], said: str
) -> None:
    told.journal(price_record(PRICES[1]), event(4), event(5, family="completion"))
    commit(told.tables, Table.PRICES, [price_version(PRICES[1], **version)])
    told.usage(of_r())
    document = told.explain("r")
    (price,) = document["prices"]
    assert (price["changed_by"], price["changed_at"]) == (version.get("changed_by"), version.get("changed_at"))
    out = io.StringIO()
    print_explanation(document, out)
    assert f"  {said}\n" in out.getvalue()


def test_a_table_of_prices_without_authors_is_read(told: Told) -> None:
    """Of an earlier release: it grows when joins of this one begins."""
    told.journal(price_record(PRICES[1]), event(4), event(5, family="completion"))
    earlier = pa.schema([field for field in PRICES_SCHEMA if field.name not in (*AUTHOR, *SOURCE, "ends_at", "terms")])
    rows = [{name: price_version(PRICES[1])[name] for name in earlier.names}]
    write_deltalake(f"{told.tables}/{Table.PRICES}", pa.Table.from_pylist(rows, earlier))
    told.usage(of_r())
    found = told.explain("r")
    assert found["adds_up"]
    assert [(row["price_version"], row["changed_by"], row["changed_at"]) for row in found["prices"]] == [
        (2, None, None)
    ]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("UPDATE usage_windows SET quantity = 2", "usage makes 1, the window has 2"),
        ("UPDATE usage_windows SET unit_price = 5", "another unit price in its window"),
        ("DELETE FROM usage_windows", "usage makes 1, the window has 0"),
        ("UPDATE corrections SET old_quantity = 1", "its usage makes 1 for 0.123456789012, and it says 0"),
    ],
)
def test_a_window_that_is_not_its_usage_does_not_add_up(told: Told, change: str, problem: str) -> None:
    told.usage(of_r(delay=LATE))
    told.journal(event(4), event(5, family="completion"))
    assert told.explain(window=NOON, accounts=("acme",))["adds_up"]
    with psycopg.connect(told.database) as connection:
        connection.execute(change)
    found = told.explain(window=NOON, accounts=("acme",))
    assert not found["adds_up"]
    assert problem in "\n".join(found["differences"])


def test_an_amount_that_differs_from_its_price_does_not_add_up(told: Told) -> None:
    told.journal(event(4), event(5, family="completion"))
    commit(told.tables, Table.PRICES, [price_version(PRICES[1], unit_price=Decimal(5))])
    told.usage(of_r())
    found = told.explain("r")
    assert (found["adds_up"], len(found["differences"])) == (False, 1)


@pytest.fixture
def told_in_part(told: Told) -> Told:
    """Three days later `weir retain` has removed the day of request r."""
    told.journal(event(4), event(5, family="completion"))
    later = [usage_row(lsn, EVENT_TIME + timedelta(days=days), LATE) for lsn, days in ((2, 3), (3, 5), (4, 5))]
    told.usage(of_r(delay=LATE), *later)
    DeltaTable(f"{told.tables}/usage").delete("log_date = '2026-03-01'")
    return told


def test_usage_removed_by_retention_is_reported_as_unknown(told_in_part: Told) -> None:
    window = told_in_part.explain(window=NOON, accounts=("acme",))
    for found in (window, *(told_in_part.explain(**{asked: 1}) for asked in ("straggler", "correction"))):
        assert (found["adds_up"], found["differences"], found["usage"]) == (None, [], [])
        assert found["usage_removed_before"] == (NOON + timedelta(days=3)).date()
        assert [row["usage_lsn"] for row in found["stragglers"]] == [1]
        text = printed(found)
        assert "is unknown: `weir retain` has removed usage of the days before 2026-03-04" in text
        assert "no bill" not in text


def test_what_is_wrong_beside_removed_usage_is_wrong(told_in_part: Told) -> None:
    with psycopg.connect(told_in_part.database) as connection:
        connection.execute("UPDATE usage_windows SET quantity = quantity + 1 WHERE window_start < '2026-03-02'")
        connection.execute("DELETE FROM usage_days WHERE day < '2026-03-02'")
    assert told_in_part.explain(window=NOON, accounts=("acme",))["adds_up"] is None
    with psycopg.connect(told_in_part.database) as connection:
        connection.execute("UPDATE usage_windows SET quantity = 2 WHERE window_start > '2026-03-05'")
    assert told_in_part.explain(window=NOON + timedelta(days=5), accounts=("acme",))["adds_up"] is False


def test_missing_usage_that_retention_may_not_remove_is_found(told_in_part: Told) -> None:
    later: dict[str, Any] = {"window": NOON + timedelta(days=5), "accounts": ("acme",)}
    assert told_in_part.explain(**later)["adds_up"] is True
    DeltaTable(f"{told_in_part.tables}/usage").delete("lsn = 3")
    for asked in (later, {"straggler": 3}, {"correction": 3}):
        found = told_in_part.explain(**asked)
        assert (found["adds_up"], found["usage_removed_before"]) == (False, None)
        assert "3 is not in usage" in found["differences"][0] or asked is later


def printed(document: dict[str, Any]) -> str:
    out = io.StringIO()
    print_explanation(document, out)
    return out.getvalue()


def test_a_window_shows_its_value_before_each_correction(told: Told) -> None:
    told.journal(event(4), event(5, family="completion"))
    told.usage(of_r(), of_r(2, LATE, request_id="late", request_lsn=6, completion_lsn=7))
    found = told.explain(window=NOON, accounts=("acme",))
    (window,), (correction,), (straggler,) = found["windows"], found["corrections"], found["stragglers"]
    assert (window["state"], window["quantity"], window["outside_corrections"]["quantity"]) == ("corrected", 2, 1)
    assert (correction["old_quantity"], correction["new_quantity"], correction["usage_lsns"]) == (1, 2, [2])
    assert (straggler["usage_lsn"], straggler["decision"]) == (2, "correct")


def test_a_straggler_that_waited_is_explained_with_its_decision_and_the_decisions_record(told: Told) -> None:
    said = {"decision": "approve", "decided_by": "ann", "reason": "as agreed"}
    told.journal(
        event(6), event(7, family="completion"), event(8, topic="catalog.decisions", family=None, account=None)
    )
    late = of_r(1, LATE, request_lsn=6, completion_lsn=7, quantities={Meter.OUTPUT_TOKENS: 5})
    decided: dict[str, Any] = {
        "lsn": 2,
        "account": "acme",
        "request_id": "r",
        "outcome": "decided",
        "cause": "decided",
        "sign": 1,
        "event_time": NOON + LATE,
        "received_at": NOON + LATE,
        "request_lsn": 8,
        "corrects_lsns": [1],
        "meters": [{"meter": "output_tokens"}],
        "dimensions": json.dumps(said),
    }
    waits = of_r(3, LATE, request_id="other", request_lsn=6, completion_lsn=7, quantities={Meter.OUTPUT_TOKENS: 9})
    told.usage(late, decided, waits)
    found = told.explain(straggler=1)
    assert [(row["lsn"], row["cause"]) for row in found["usage"]] == [(1, "stream"), (2, "decided")]
    assert [record["lsn"] for record in found["records"]] == [6, 7, 8]
    assert [outcome["usage_lsns"] for outcome in found["outcomes"]] == [[1]]
    (straggler,) = found["stragglers"]
    assert {name: straggler[name] for name in said} == said
    assert printed(found).count("approve by ann (as agreed)") == 2, "of the straggler and of the decision"
    window = told.explain(window=NOON, accounts=("acme",))
    assert window["adds_up"], window["differences"]
    assert {cell["meter"]: cell["quantity"] for cell in window["windows"]}["output_tokens"] == 5
    assert f"hold until {rfc3339(EVENT_TIME + LATE + timedelta(days=7))}" in printed(window)


WHOLE: dict[str, Any] = {"window": NOON, "accounts": ("acme",)}
ID, STRAGGLER, CORRECTION = {"text": "r"}, {"straggler": 1}, {"correction": 1}
AGAIN = """
    INSERT INTO corrections (usage_lsn, meter, usage_lsns, window_start, account, model, currency, cause,
                             old_quantity, new_quantity, old_amount, new_amount)
    SELECT 0, meter, ARRAY[0, 1], window_start, account, model, currency, cause, 0, 1, old_amount, new_amount
    FROM corrections
"""


@pytest.mark.parametrize(
    ("change", "problem", "seen_by"),
    [
        ("UPDATE usage_days SET quantity = 5", "the minutes make 1 for", (WHOLE, ID, STRAGGLER, CORRECTION)),
        ("UPDATE usage_days SET unit_price = unit_price * 3", "in its line", (WHOLE, ID, STRAGGLER, CORRECTION)),
        ("DELETE FROM usage_days", "it is on no line of 2026-03", (WHOLE, ID)),
        (
            "UPDATE corrections SET old_quantity = old_quantity + 100, new_quantity = new_quantity + 100",
            "the window never was 100 for 0",
            (WHOLE, STRAGGLER, CORRECTION),
        ),
        (
            "UPDATE corrections SET old_amount = 1, new_amount = new_amount + 1",
            "the window never was 0 for 1",
            (WHOLE, STRAGGLER, CORRECTION),
        ),
        ("UPDATE corrections SET new_quantity = 3", "it says 3 for", (WHOLE, ID, STRAGGLER, CORRECTION)),
        ("DELETE FROM corrections", "in 0 corrections instead of one", (WHOLE, ID, STRAGGLER)),
        (AGAIN, "in 2 corrections instead of one", (WHOLE, ID, STRAGGLER)),
        ("UPDATE stragglers SET quantity = 77", "the straggler says 77 at", (WHOLE, ID, STRAGGLER, CORRECTION)),
        ("UPDATE stragglers SET unit_price = 77", "the straggler says 1 at 77", (WHOLE, ID, STRAGGLER, CORRECTION)),
    ],
)
def test_a_contradiction_of_usage_does_not_add_up_in_any_question(
    told: Told, change: str, problem: str, seen_by: tuple[dict[str, Any], ...]
) -> None:
    told.journal(event(4), event(5, family="completion"))
    told.usage(of_r(delay=LATE))
    for asked in seen_by:
        assert told.explain(**asked)["adds_up"] is True
    with psycopg.connect(told.database) as connection:
        connection.execute(change)
    for asked in seen_by:
        found = told.explain(**asked)
        assert found["adds_up"] is False
        assert problem in "\n".join(found["differences"])


def test_another_accounts_record_is_reported_as_not_found(told: Told) -> None:
    told.journal(event(4), event(5, family="completion"), event(6, account="bolt", user_id="secret"))
    told.usage(of_r(1, LATE, account="bolt", request_lsn=6, completion_lsn=None))
    times = {"session_start": EVENT_TIME, "session_end": EVENT_TIME}
    write(told.database, "sessions", {"account": "bolt", "user_id": "secret", **times, "events": 1, "version": 1})
    for asked in ("straggler", "correction", "session"):
        assert told.explain(**{asked: 1}, accounts=("acme", "bolt"))["adds_up"]
        sentences = []
        for number in (1, 77):
            with pytest.raises(CannotRun, match=f"{number} .*of acme") as refused:
                told.explain(**{asked: number}, accounts=("acme",))
            sentences.append(str(refused.value).replace(str(number), "N"))
        assert sentences[0] == sentences[1]


def test_a_row_without_a_day_is_on_the_line_that_it_was_billed_on(told: Told) -> None:
    last_minutes = datetime(2026, 3, 31, 22, 30, tzinfo=UTC)
    more: dict[str, Any] = {"request_id": "r", "request_lsn": 4, "completion_lsn": 5, "plan": "p", "price": PRICES[1]}
    row = usage_row(1, last_minutes, **more)
    back = {**row, "lsn": 2, "sign": -1, "cause": "duplicate", "corrects_lsns": [1]}
    told.journal(event(4), event(5, family="completion"))
    told.usage(row, back, billed=1)
    assert [line["month"] for line in told.explain("r")["line"]] == ["2026-03"]
    with psycopg.connect(told.database) as connection:
        # As the days of an account in Europe/Berlin were made of the minutes of 0.1.0.
        connection.execute("UPDATE usage_days SET day = '2026-04-01'")
    found = told.explain("r")
    assert [(line["month"], line["contribution"]["quantity"]) for line in found["line"]] == [("2026-04", 1)]
    assert found["adds_up"], found["differences"]
    with psycopg.connect(told.database) as connection:
        bill(connection, [back], CONFIG)
        connection.execute("UPDATE positions SET next_position = 3 WHERE job = 'billing'")
    found = told.explain("r")
    lines = [(line["month"], line["contribution"]["quantity"]) for line in found["line"]]
    assert lines == [("2026-03", -1), ("2026-04", 1)]
    assert found["adds_up"], found["differences"]


def test_35_days_are_counted_back_from_the_requested_end(told: Told) -> None:
    told.journal(event(4), event(5, request_id="x", received_at=EVENT_TIME + timedelta(days=60)))
    assert [row["lsn"] for row in told.explain("r", end=EVENT_TIME + timedelta(days=30))["records"]] == [4]
    with pytest.raises(CannotRun, match="since 2019-11-27T00:00:00Z and before 2020-01-01T00:00:00Z"):
        told.explain("r", end=datetime(2020, 1, 1, tzinfo=UTC))


def test_an_id_of_very_many_records_is_explained_in_part_and_marked_as_cut(told: Told) -> None:
    several = range(10, 40)
    told.journal(*(event(lsn, account=f"a{lsn}", value=b"v" * 1_000) for lsn in several))
    told.usage(*(of_r(lsn - 9, MINUTE, account=f"a{lsn}", request_lsn=lsn, completion_lsn=None) for lsn in several))
    found = told.explain("r", limit=2)
    assert [row["lsn"] for row in found["usage"]] == [1, 2]
    assert [row["lsn"] for row in found["records"]] == [10, 11]
    assert [(row["account"], row["contribution"]["quantity"]) for row in found["windows"]] == [("a10", 1), ("a11", 1)]
    assert (found["cut"], found["usage_summed"]) == ({"usage": 30}, 2)
    assert "Sums are of the first 2 rows of usage only." in printed(found)
    assert len(json.dumps(found, default=str)) < 10_000
    of_events = told.explain("e12", limit=2)
    assert ([row["lsn"] for row in of_events["usage"]], of_events["cut"]) == ([3], None)


def test_an_event_with_very_many_repeats_is_explained_in_part(told: Told) -> None:
    several = range(10, 40)
    told.journal(*(event(lsn, id="same", request_id=f"r{lsn}") for lsn in several))
    told.usage(*(of_r(lsn - 9, MINUTE, request_id=f"r{lsn}", request_lsn=lsn, completion_lsn=None) for lsn in several))
    found = told.explain("same", limit=1)
    assert ([row["lsn"] for row in found["usage"]], found["usage_summed"]) == ([1], 1)
    assert [row["lsn"] for row in found["records"]] == [10, 11, 12, 13]
    assert found["cut"] == {"usage": 4, "records": 30}


def test_a_busy_minute_is_summed_whole_and_names_no_more_than_the_limit(told: Told) -> None:
    told.journal(event(4))
    told.usage(*(of_r(lsn, LATE, request_id=f"r{lsn}") for lsn in range(1, 121)))
    found = told.explain(**WHOLE, limit=2)
    (window,) = found["windows"]
    assert (window["usage_lsns"], window["usage_rows"], window["contribution"]["quantity"]) == ([1, 2], 120, 120)
    assert found["cut"] == {"usage": 120, "stragglers": 120, "corrections": 120}
    assert (len(found["stragglers"]), found["usage_summed"], found["adds_up"]) == (100, 120, True)
    assert "Sums are of" not in printed(found)


def repriced() -> list[dict[str, Any]]:
    back = of_r(2, price=PRICES[0], sign=-1, cause="repriced", corrects_lsns=[1])
    return [of_r(price=PRICES[0]), back, of_r(3, cause="repriced", corrects_lsns=[1])]


def rejoined() -> list[dict[str, Any]]:
    """Two minutes after the request its completion came, when it was given up."""
    asked: dict[str, Any] = {"outcome": "abandoned", "completion_lsn": None}
    completed_at = EVENT_TIME + 2 * MINUTE
    tokens = {Meter.REQUESTS: 0, Meter.INPUT_TOKENS: 7}
    answered = {**usage_row(2, completed_at, quantities=tokens, price=PRICES[1]), "outcome": "orphaned"}
    answered |= {"request_id": "r", "request_lsn": None, "completion_lsn": 5, "plan": "p"}
    both = usage_row(5, completed_at, quantities={**tokens, Meter.REQUESTS: 1}, price=PRICES[1])
    both |= {"request_id": "r", "request_lsn": 4, "completion_lsn": 5, "plan": "p"}
    first = of_r(1, **asked)
    back = {"sign": -1, "cause": "rejoined"}
    return [
        first,
        answered,
        {**first, **back, "lsn": 3, "corrects_lsns": [1]},
        {**answered, **back, "lsn": 4, "corrects_lsns": [2]},
        {**both, "cause": "rejoined", "corrects_lsns": [1, 2]},
    ]


def redriven() -> list[dict[str, Any]]:
    """The request was a dead letter, and came back when its completion was given up: its record is the later one."""
    rows = [{**row, "request_lsn": row["request_lsn"] and 6} for row in rejoined()]
    abandoned, orphaned, *_ = rows
    rows[0], rows[1] = {**orphaned, "lsn": 1}, {**abandoned, "lsn": 2}
    rows[2], rows[3] = {**rows[2], "corrects_lsns": [2]}, {**rows[3], "corrects_lsns": [1]}
    return rows


def duplicate() -> list[dict[str, Any]]:
    again = of_r(2, request_lsn=6, completion_lsn=None)
    return [of_r(), again, {**again, "lsn": 3, "sign": -1, "cause": "duplicate", "corrects_lsns": [2]}]


@pytest.mark.few_in_ci(5)
@pytest.mark.parametrize("delay", [timedelta(0), LATE])
@pytest.mark.parametrize(
    ("rows", "left"),
    [
        (repriced, {("requests", 1): 0, ("requests", 2): 1}),
        (rejoined, {("requests", 2): 1, ("input_tokens", 2): 7}),
        (redriven, {("requests", 2): 1, ("input_tokens", 2): 7}),
        (duplicate, {("requests", 2): 1}),
    ],
)
@pytest.mark.parametrize("batches", [1, 2])
def test_a_restated_request_is_explained_down_to_its_records_and_adds_up(
    told: Told,
    rows: Callable[[], list[dict[str, Any]]],
    left: dict[tuple[str, int], int],
    batches: int,
    delay: timedelta,
) -> None:
    usage = [{**row, "received_at": row["received_at"] + delay} for row in rows()]
    decided = sum(row["cause"] == "stream" for row in usage)
    told.journal(event(4), event(5, family="completion"), event(6, id="e4", family="request"))
    commit(told.tables, Table.USAGE, map(stored_usage, usage))
    bill_all(told.database, *([usage] if batches == 1 else [usage[:decided], usage[decided:]]))
    lsns = [row["lsn"] for row in usage]
    for asked in ("r", "e4"):
        found = told.explain(asked)
        assert found["adds_up"] is True, found["differences"]
        assert [row["lsn"] for row in found["usage"]] == lsns
        assert {4, 5} <= {row["lsn"] for row in found["records"]}
        of_lines = {(line["meter"], line["price_version"]): line["contribution"]["quantity"] for line in found["line"]}
        assert of_lines == left
        assert {one for row in found["corrections"] for one in row["usage_lsns"]} >= {*lsns[decided:]}
    for start in sorted({row["window_start"] for row in found["windows"]}):
        whole = told.explain(window=start, accounts=("acme",))
        assert whole["adds_up"] is True, whole["differences"]
    for number in sorted({row["usage_lsn"] for row in found["corrections"]}):
        correction = told.explain(correction=number)
        assert correction["adds_up"] is True, correction["differences"]
        assert correction["records"]


def test_a_long_window_is_summed_whole_and_listed_in_part(told: Told) -> None:
    told.journal(*(event(lsn, request_id=f"r{lsn}") for lsn in range(10, 30)))
    told.usage(*(of_r(lsn, request_id=f"r{lsn + 9}", request_lsn=lsn + 9) for lsn in range(1, 21)))
    found = told.explain(window=NOON, accounts=("acme",), limit=3)
    assert ([row["lsn"] for row in found["usage"]], [row["lsn"] for row in found["records"]]) == (
        [1, 2, 3],
        [10, 11, 12],
    )
    assert (found["windows"][0]["contribution"]["quantity"], found["adds_up"]) == (20, True)
    assert found["cut"] == {"usage": 20}
    assert told.explain(window=NOON, accounts=("acme",), limit=20)["cut"] is None


def test_a_request_with_very_many_repeats_is_listed_in_part(told: Told) -> None:
    told.journal(event(4), *(event(lsn, disposition="duplicate", first_lsn=4) for lsn in range(5, 20)))
    found = told.explain("r", limit=2)
    assert ([row["lsn"] for row in found["records"]], found["cut"]) == ([4, 5, 6, 7, 8, 9, 10, 11], {"records": 16})


def test_a_straggler_and_a_correction_are_explained_with_what_they_correct(told: Told) -> None:
    told.journal(event(4), event(5, family="completion"))
    more = {"cause": "duplicate", "sign": -1, "corrects_lsns": [1]}
    told.usage(of_r(delay=LATE), of_r(2, LATE, **more))
    straggler = told.explain(straggler=1)
    assert ([row["lsn"] for row in straggler["usage"]], len(straggler["stragglers"])) == ([1], 1)
    assert [row["lsn"] for row in straggler["records"]] == [4, 5]
    correction = told.explain(correction=2)
    assert [row["lsn"] for row in correction["usage"]] == [1, 2]
    assert [row["usage_lsn"] for row in correction["corrections"]] == [1, 2]
    for asked in ("straggler", "correction"):
        with pytest.raises(CannotRun, match="weir " + asked):
            told.explain(**{asked: 77})


def test_a_session_is_explained_by_the_requests_that_it_counts(told: Told) -> None:
    told.journal(
        event(4), event(5, family="completion"), event(6, user_id="v"), event(7, request_id="t", account="bolt")
    )
    told.usage(of_r(), of_r(2, request_id="t", request_lsn=7, account="bolt"))
    times = {"session_start": EVENT_TIME, "session_end": EVENT_TIME}
    write(told.database, "sessions", {"account": "acme", "user_id": "u", **times, "events": 1, "version": 1})
    found = told.explain(session=1)
    assert (found["session"]["user_id"], found["session"]["requests_found"]) == ("u", 1)
    assert [row["lsn"] for row in found["records"]] == [4, 5]
    assert [row["lsn"] for row in found["usage"]] == [1]
    with pytest.raises(CannotRun, match="weir sessions"):
        told.explain(session=2)


@pytest.mark.parametrize("seed", range(2))
def test_oracle_each_line_of_a_month_is_its_minutes_and_all_their_usage(
    database: str, tmp_path: Path, seed: int
) -> None:
    Metered(seed).store(database, tmp_path)
    stored = shown(database)
    for account in ("acme", "bolt"):
        found = explained(database, tmp_path, ExplainQuery(line=NOON.date().replace(day=1), accounts=(account,)))
        assert found["adds_up"], found["differences"]
        assert found["cut"] is None
        windows = {tuple(row[name] for name in KEY): row for row in found["windows"]}
        assert windows.keys() == {key for key in stored if key[1] == account}
        lines: defaultdict[tuple[Any, ...], list[Decimal]] = defaultdict(lambda: [Decimal(0)] * 2)
        for key, row in windows.items():
            assert [row["contribution"][name] for name in AMOUNTS] == [stored[key][name] for name in AMOUNTS]
            for part in row["price_versions"]:
                of = (*key[2:], part["price_version"])
                lines[of] = [EXACT.add(was, part[name] or 0) for was, name in zip(lines[of], AMOUNTS[:2], strict=True)]
        told = {
            (row["model"], row["meter"], row["currency"], row["price_version"]): row
            for row in found["line"]
            if row["quantity"]
        }
        assert {of: sums for of, sums in lines.items() if sums[0]} == {
            of: [row["quantity"], row["amount"] or 0] for of, row in told.items()
        }
        for row in told.values():
            assert row["contribution"]["quantity"] == row["quantity"]
        one = next(iter(told.values()))
        narrow = {name: one[name] for name in ("model", "meter", "currency")}
        part = explained(database, tmp_path, ExplainQuery(line=NOON.date(), accounts=(account,), **narrow))
        assert part["adds_up"], part["differences"]
        assert {tuple(row[name] for name in narrow) for row in part["windows"]} == {tuple(narrow.values())}
        assert all(row["meter"] == one["meter"] for row in [*part["stragglers"], *part["corrections"]])


def test_a_line_of_many_minutes_is_summed_whole_and_its_list_is_marked_as_cut(told: Told) -> None:
    told.journal(event(4), event(5, family="completion"))
    many = 7
    told.usage(*(usage_row(n + 1, EVENT_TIME + n * MINUTE, price=PRICES[1], request_lsn=4) for n in range(many)))
    found = told.explain(line=NOON.date(), accounts=("acme",), meter="requests", limit=2)
    (line,) = found["line"]
    assert (line["quantity"], line["contribution"]["quantity"], found["adds_up"]) == (many, 2, True)
    assert [row["window_start"] for row in found["windows"]] == [NOON, NOON + MINUTE]
    assert [row["lsn"] for row in found["usage"]] == [1, 2]
    assert found["cut"] == {"windows": many}
    with psycopg.connect(told.database) as connection:
        connection.execute("UPDATE usage_windows SET quantity = 2 WHERE window_start = %s", [NOON + 5 * MINUTE])
    found = told.explain(line=NOON.date(), accounts=("acme",), limit=2)
    assert not found["adds_up"]
    assert "requests EUR, price version 2: the minutes make 8 for" in "\n".join(found["differences"])


def test_a_minute_in_no_day_of_the_month_is_a_difference(told: Told) -> None:
    told.journal(event(4))
    told.usage(*(usage_row(n + 1, EVENT_TIME + n * timedelta(days=1), price=PRICES[1]) for n in range(3)))
    with psycopg.connect(told.database) as connection:
        connection.execute("DELETE FROM usage_days WHERE day = '2026-03-02'")
    assert not told.explain(line=NOON.date(), accounts=("acme",))["adds_up"]


def test_usage_of_each_month_is_explained_with_its_own_line(told: Told) -> None:
    told.journal(event(4), event(5, family="completion"))
    february = of_r(2, request_id="s", day=NOON.date() - timedelta(days=1))
    told.usage(of_r(day=NOON.date()), february)
    for month, lsn in ((NOON.date(), 1), (NOON.date().replace(month=2), 2)):
        found = told.explain(line=month, accounts=("acme",))
        assert found["adds_up"], found["differences"]
        assert [row["quantity"] for row in found["line"]] == [1]
        assert [row["lsn"] for row in found["usage"]] == [lsn]
        assert [row["contribution"]["quantity"] for row in found["windows"]] == [1]


def test_a_line_that_does_not_exist_is_reported(told: Told) -> None:
    told.journal(event(4))
    told.usage(of_r())
    for asked in ({"accounts": ("bolt",)}, {"meter": "images"}, {"currency": "USD"}, {"line": date(2026, 5, 1)}):
        with pytest.raises(CannotRun, match="has no such line in 2026-0"):
            told.explain(**{"line": NOON.date(), "accounts": ("acme",), **asked})


def test_nothing_is_known_before_there_are_tables_or_usage(told: Told) -> None:
    with pytest.raises(CannotRun, match="no journal"):
        told.explain("r")
    told.journal(event(4))
    with pytest.raises(CannotRun, match="has no such usage in the minute from 2026-03-01T12:00:00"):
        told.explain(window=EVENT_TIME, accounts=("acme",))
    with pytest.raises(CannotRun, match="No request or event of the id unknown was received since"):
        told.explain("unknown")


def test_tables_in_an_object_store_are_read_as_those_in_a_folder(database: str, store: str) -> None:
    told = Told(database, store)
    told.journal(price_record(PRICES[1]), event(4), event(5, family="completion"))
    told.journal(event(6, disposition="duplicate", first_lsn=5))
    commit(store, Table.PRICES, [price_version(PRICES[1])])
    told.usage(of_r())
    for asked in ({"text": "r"}, {"text": "e4"}, {"window": NOON, "accounts": ("acme",)}):
        found = told.explain(**asked)
        assert [row["lsn"] for row in found["records"]] == [4, 5, 6]
        assert (found["adds_up"], len(found["prices"])) == (True, 1)


class TestTheCommand:
    """As it is run, with the stack of its environment."""

    @pytest.fixture
    def run(self, told: Told, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
        told.journal(event(4, value=b'{"a": "\x1b[31m"}'), event(5, family="completion"))
        told.usage(of_r(day=NOON.date()), of_r(2, LATE, request_id="late"))
        monkeypatch.setenv("WEIR_TABLES", str(told.tables))
        monkeypatch.setenv("WEIR_POSTGRES_URL", told.database)
        monkeypatch.setenv("WEIR_KAFKA_BOOTSTRAP", "nowhere:1")
        return lambda *words: CliRunner().invoke(app, ["explain", *words])

    def test_prints_json_with_all_digits(self, run: Callable[..., Result]) -> None:
        document = json.loads(run("r", "--format", "json").stdout)
        assert list(document)[:5] == ["line", "windows", "usage", "outcomes", "records"]
        (meter,) = [meter for meter in document["usage"][0]["meters"] if meter["quantity"]]
        assert (meter["quantity"], meter["amount"]) == ("1", "0.123456789012")
        assert document["records"][0]["received_at"] == "2026-03-01T12:00:11Z"
        assert document["usage"][0]["day"] == "2026-03-01"

    def test_prints_lines_that_steer_no_terminal_and_no_password(self, told: Told, run: Callable[..., Result]) -> None:
        text = run("--window", "2026-03-01T12:00:30Z", "--account", "acme").output
        for part in ("Windows", "1 x 0.123456789012 = 0.123456789012 EUR", "events[1] offset 4", "It adds up."):
            assert part in text
        assert "\x1b" not in text
        assert told.database not in text
        assert not [name for name in ("Session", "Nothing") if name in text]

    def test_prints_each_report_of_a_request_with_what_it_reports_and_why_one_bills(
        self, told: Told, run: Callable[..., Result]
    ) -> None:
        said = {"request_id": "twice", "family": "both", "status": "completed"}
        told.journal(
            event(6, **said, input_tokens=7, output_tokens=30),
            event(7, **said, input_tokens=8, received_at=EVENT_TIME + timedelta(seconds=7)),
        )
        superseded = {"outcome": "superseded", "quantities": {}}
        rows = [of_r(lsn, request_id="twice", request_lsn=lsn + 3, completion_lsn=lsn + 3) for lsn in (3, 4)]
        commit(told.tables, Table.USAGE, [stored_usage({**rows[0]}), stored_usage({**rows[1], **superseded})])
        text = run("twice").output
        why = "event e6 bills: the first report of a request counts, as best_report_bills was off"
        for part in ("Reports", "bills: it reports 7 input_tokens, 30 output_tokens", why, "bills nothing: it reports"):
            assert part in text
        document = json.loads(run("twice", "--format", "json").stdout)
        assert [(row["quantities"], row["bills"]) for row in document["reports"]] == [
            ({"input_tokens": 7, "output_tokens": 30}, True),
            ({"input_tokens": 8}, False),
        ]
        assert {row["explanation"] for row in document["reports"]} == {why}

    def test_prints_a_line_with_its_minutes(self, run: Callable[..., Result]) -> None:
        words = ("--line", "2026-03", "--account", "acme", "--model", "sonnet", "--meter", "requests")
        text = run(*words, "--currency", "EUR").output
        for part in ("Line of the bill", "acme 2026-03, sonnet requests: 2 x 0.123456789012", "It adds up."):
            assert part in text
        assert len(json.loads(run(*words, "--format", "json").stdout)["windows"]) == 1

    def test_a_line_names_the_fees_of_plans_and_the_units_that_they_include(
        self, told: Told, run: Callable[..., Result]
    ) -> None:
        march = datetime(2026, 3, 1, tzinfo=UTC)
        terms = {"kind": "plan", "flat_fee": "31", "minimum_amount": "40", "included": {"requests": "1"}}
        of_plan = {"plan": "p", "currency": "EUR", "effective_from": march}
        rung = {**of_plan, "model": "sonnet", "meter": "requests", "unit_price": PRICES[1].unit_price}
        write(told.database, "catalog.plans", {"plan": "p", "name": "P"})
        account = {"account": "acme", "name": "A", "plan": "p", "currency": "EUR", "effective_from": march}
        write(told.database, "catalog.accounts", account)
        row = {**of_plan, "model": PLAN_MODEL, "meter": "requests", "terms": Jsonb(terms)}
        write(told.database, "catalog.prices", row)
        write(told.database, "price_ladders", {**rung, "price_version": PRICES[1].version})
        words = ("--line", "2026-03", "--account", "acme")
        text = run(*words).output
        for part in ("sonnet requests: 1 (price version", "flat of plan p, 31 days: 31 EUR", "minimum of plan p"):
            assert part in text
        document = json.loads(run(*words, "--format", "json").stdout)
        assert [(fee["fee"], fee["days"]) for fee in document["fees"]] == [("flat", 31), ("minimum", 31)]
        assert [(part["meter"], part["quantity"]) for part in document["included"]] == [("requests", "1")]
        one = json.loads(run(*words, "--meter", "requests", "--format", "json").stdout)
        assert (one["fees"], len(one["included"])) == ([], 1)

    def test_explain_takes_exactly_one_subject(self, run: Callable[..., Result]) -> None:
        for words in ((), ("r", "--straggler", "1"), ("--window", "2026-03-01T12:00:30Z")):
            assert run(*words).exit_code == 2

    def test_explain_refuses_options_that_do_not_apply(self, run: Callable[..., Result]) -> None:
        minute = ("--window", "2026-03-01T12:00:30Z", "--account", "acme")
        for words, said in (
            (("r", "--model", "sonnet"), "need --line or --window"),
            (("--straggler", "2", "--meter", "requests"), "need --line or --window"),
            ((*minute, "--from", "2026-03-01T12:00:30Z"), "leave them out"),
            ((*minute, "--currency", "EUR"), "--currency needs --line"),
            (("--line", "2026-03"), "need one account"),
            (("--line", "March", "--account", "acme"), "is not a month such as 2026-03"),
            (("--line", "9999-12", "--account", "acme"), "is not a month such as 2026-03"),
            (("--session", "1", "--to", "2026-03-01T12:00:30Z"), "leave them out"),
        ):
            result = run(*words)
            assert (result.exit_code, said in " ".join(result.output.split())) == (2, True), result.output
        assert run(*minute, "--model", "sonnet", "--meter", "requests").exit_code == 0

    @pytest.mark.parametrize(
        "words",
        [
            ("r", "--limit", "4611686018427387904"),
            ("\udcff",),
            ("r", "--account", "\udcff"),
            ("--window", "1970-01-01T00:00:00+23:59", "--account", "acme"),
            ("--window", "9998-12-31T23:59:59-23:59", "--account", "acme"),
            ("--window", "0001-01-01T00:00:00+23:59", "--account", "acme"),
        ],
    )
    def test_explain_reports_impossible_arguments_as_usage_errors(
        self, run: Callable[..., Result], words: tuple[str, ...]
    ) -> None:
        result = run(*words)
        assert (result.exit_code, isinstance(result.exception, SystemExit)) == (2, True), result.output

    @pytest.mark.parametrize(
        "command", [("usage", "--account"), ("sessions", "--user"), ("stragglers", "--account"), ("catalog", "apply")]
    )
    def test_as_every_command_does(self, run: Callable[..., Result], command: tuple[str, ...]) -> None:
        run()
        result = CliRunner().invoke(app, [*command, "caf\udce9"])
        assert (result.exit_code, isinstance(result.exception, SystemExit)) == (2, True), result.output

    def test_says_that_an_id_is_unknown(
        self, run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert isinstance(run("unknown").exception, CannotRun)
        monkeypatch.setattr("sys.argv", ["weir", "explain", "unknown"])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 1
        assert "No request or event of the id unknown was received since" in capsys.readouterr().err
