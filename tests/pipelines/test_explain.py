"""`weir explain`, over real tables and a real database. Oracle: all explanations together make what is billed."""

from __future__ import annotations

import io
import json
from collections import defaultdict
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from typer.testing import CliRunner, Result

from cli.main import app, main
from cli.reading import read_only
from cli.usage import UsageQuery, usage_rows
from cli.way_down.files import Files
from cli.way_down.printed import print_explanation
from cli.way_down.question import Question, explanation
from deployment.errors import CannotRun
from jobs.streams import JOURNAL, Table
from metering.instants import rfc3339
from metering.meters import Meter
from metering.windows import MINUTE
from tests.database_rows import write
from tests.pipelines.billing import EXACT, NOON, usage_row
from tests.pipelines.explaining import (
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


def explained(database: str, tables: Path | str, question: Question) -> dict[str, Any]:
    with read_only(database) as connection:
        return explanation(connection, str(tables), question)


def shown(database: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    with read_only(database) as connection:
        return {tuple(row[name] for name in KEY): dict(row) for row in usage_rows(connection, UsageQuery())}


@pytest.mark.parametrize("seed", range(3))
def test_oracle_what_all_requests_add_is_every_window_to_the_last_digit(
    database: str, tmp_path: Path, seed: int
) -> None:
    history = Metered(seed)
    history.store(database, tmp_path)
    made: defaultdict[tuple[Any, ...], list[Decimal]] = defaultdict(lambda: [Decimal(0)] * 3)
    seen: set[int] = set()
    for request_id in sorted({row["request_id"] for row in history.usage}):
        found = explained(database, tmp_path, Question(request_id))
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


@pytest.mark.parametrize("seed", range(3))
def test_oracle_each_window_is_its_usage_and_is_what_weir_usage_shows(database: str, tmp_path: Path, seed: int) -> None:
    Metered(seed).store(database, tmp_path)
    stored = shown(database)
    for start, account in sorted({key[:2] for key in stored}):
        found = explained(database, tmp_path, Question(window=start + MINUTE / 2, accounts=(account,)))
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
        return explained(self.database, self.tables, Question(*args, **question))


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


def test_a_request_is_told_with_every_record_that_concerns_it_whatever_became_of_it(told: Told) -> None:
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


def test_a_record_that_waits_or_was_rejected_is_told_and_is_on_no_bill(told: Told) -> None:
    told.journal(event(4), event(5, request_id=None, id="broken", disposition="rejected", reason="malformed"))
    for name, lsn in (("r", 4), ("broken", 5)):
        found = told.explain(name)
        assert [row["lsn"] for row in found["records"]] == [lsn]
        assert (found["usage"], found["outcomes"], found["windows"], found["line"]) == ([], [], [], None)


def test_a_value_that_is_no_text_is_told_in_base64(told: Told) -> None:
    told.journal(event(4, value=b"\xff\x00"), event(5, value="é".encode()), event(6, value=None))
    first, second, third = told.explain("r")["records"]
    assert (first["value"], first["value_base64"]) == (None, "/wA=")
    assert second["value"] == "é"
    assert "value_base64" not in second
    assert third["value"] is None


def test_an_account_and_a_period_narrow_what_an_id_means(told: Told) -> None:
    later = NOON + timedelta(days=30)
    told.journal(event(4), event(5, account="bolt"), event(6, received_at=later))
    assert [row["lsn"] for row in told.explain("r", accounts=("bolt",))["records"]] == [5]
    assert [row["lsn"] for row in told.explain("r", start=later)["records"]] == [6]
    assert [row["lsn"] for row in told.explain("r", end=later)["records"]] == [4, 5]
    assert [row["lsn"] for row in told.explain("r")["records"]] == [4, 5, 6]
    with pytest.raises(CannotRun, match="No request or event of the id r of acme was received since"):
        told.explain("r", accounts=("acme",), start=later + timedelta(days=1))


def test_what_is_older_than_35_days_before_the_newest_record_is_looked_for_only_when_asked(told: Told) -> None:
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


def test_a_file_of_which_the_log_says_nothing_may_hold_anything(tmp_path: Path) -> None:
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


def test_a_price_is_told_with_its_record_and_when_it_was_committed(told: Told) -> None:
    told.journal(price_record(PRICES[1]), event(4), event(5, family="completion"))
    commit(told.tables, Table.PRICES, [price_version(PRICES[1])])
    told.usage(of_r())
    (price,) = told.explain("r")["prices"]
    assert (price["price_version"], price["unit_price"]) == (2, PRICES[1].unit_price)
    assert (price["told_by"], price["committed_at"]) == ("weir", NOON - timedelta(days=9))
    assert (price["record"]["topic"], price["record"]["lsn"]) == ("catalog.prices", 2)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("UPDATE usage_windows SET quantity = 2", "usage makes 1, the window has 2"),
        ("UPDATE usage_windows SET unit_price = 5", "another unit price in its window"),
        ("DELETE FROM usage_windows", "usage makes 1, the window has 0"),
        ("UPDATE corrections SET old_quantity = 1", "its usage makes 1, and it says 0"),
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


def test_a_price_that_says_another_amount_does_not_add_up(told: Told) -> None:
    told.journal(event(4), event(5, family="completion"))
    commit(told.tables, Table.PRICES, [price_version(PRICES[1], unit_price=Decimal(5))])
    told.usage(of_r())
    found = told.explain("r")
    assert (found["adds_up"], len(found["differences"])) == (False, 1)


def test_usage_that_retention_has_removed_is_missed(told: Told) -> None:
    told.journal(event(4), event(5, family="completion"))
    told.usage(of_r())
    DeltaTable(f"{told.tables}/usage").delete()
    found = told.explain(window=NOON, accounts=("acme",))
    assert not found["adds_up"]
    assert found["usage"] == []


def test_a_window_says_what_it_was_before_each_correction(told: Told) -> None:
    told.journal(event(4), event(5, family="completion"))
    told.usage(of_r(), of_r(2, LATE, request_id="late", request_lsn=6, completion_lsn=7))
    found = told.explain(window=NOON, accounts=("acme",))
    (window,), (correction,), (straggler,) = found["windows"], found["corrections"], found["stragglers"]
    assert (window["state"], window["quantity"], window["outside_corrections"]["quantity"]) == ("corrected", 2, 1)
    assert (correction["old_quantity"], correction["new_quantity"], correction["usage_lsns"]) == (1, 2, [2])
    assert (straggler["usage_lsn"], straggler["decision"]) == (2, "correct")


def test_a_straggler_that_waited_is_told_with_its_decision_and_the_record_that_says_it(told: Told) -> None:
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


def printed(document: dict[str, Any]) -> str:
    out = io.StringIO()
    print_explanation(document, out)
    return out.getvalue()


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


def test_a_request_that_came_again_and_again_is_listed_in_part(told: Told) -> None:
    told.journal(event(4), *(event(lsn, disposition="duplicate", first_lsn=4) for lsn in range(5, 20)))
    found = told.explain("r", limit=2)
    assert ([row["lsn"] for row in found["records"]], found["cut"]) == ([4, 5, 6, 7, 8, 9, 10, 11], {"records": 16})


def test_a_straggler_and_a_correction_are_told_with_what_they_correct(told: Told) -> None:
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


def test_a_session_is_told_by_the_requests_that_it_counts(told: Told) -> None:
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

    def test_takes_one_question(self, run: Callable[..., Result]) -> None:
        for words in ((), ("r", "--straggler", "1"), ("--window", "2026-03-01T12:00:30Z")):
            assert run(*words).exit_code == 2

    def test_says_that_an_id_is_unknown(
        self, run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert isinstance(run("unknown").exception, CannotRun)
        monkeypatch.setattr("sys.argv", ["weir", "explain", "unknown"])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 1
        assert "No request or event of the id unknown was received since" in capsys.readouterr().err
