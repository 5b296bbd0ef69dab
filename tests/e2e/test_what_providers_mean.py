"""What providers and gateways report, on a stack of its own: from `weir produce` to what `weir usage` lists, and again
after an audit. Each account is a case of the ten that people meet, but for one that is billed by its users; or a bug
report of people who meter AI traffic, with its own prices and the amount that it says.

The events come in two topics, each event in both of them, while ingestion is killed. So whatever is billed here is what
two topics must bill.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from deltalake import DeltaTable

from deployment.stack import Stack, running_stack
from jobs.streams import EVENTS_TOPIC, HEARTBEAT_SOURCE, CatalogTopic, Table
from metering.vocabulary import Disposition
from tests.e2e.conftest import weir_at
from tests.e2e.metering import frozen
from tests.waiting import wait_until

USAGE, REQUEST, COMPLETION = (f"ai.inference.{kind}.v1" for kind in ("usage", "request", "completion"))
COUNT = {"type": ["integer", "null"], "minimum": 0}
CONTRACT = {
    "$id": USAGE,
    "allOf": [{"$ref": f"weir:{USAGE}"}],
    "properties": {
        "data": {
            "properties": {
                name: {**COUNT, "x-weir-column": name} for name in ("cache_write_tokens", "reasoning_tokens")
            }
        }
    },
}
CALLS = "calls"
"""The second topic, which takes no other events. What is reversed comes in the first."""
TOPICS = ({"topic": EVENTS_TOPIC}, {"topic": CALLS, "types": [USAGE, REQUEST, COMPLETION]})
CONFIG: dict[str, Any] = {
    "contracts": ["usage.json"],
    "meters": {
        "requests": {"unit": "request", "count": "outcomes", "where": {"status": ["completed"]}},
        "input_tokens": {"unit": "token", "sum": "input_tokens"},
        "output_tokens": {"unit": "token", "sum": "output_tokens"},
        "cached_tokens": {"unit": "token", "sum": "cached_tokens", "within": "input_tokens"},
        "cache_write_tokens": {"unit": "token", "sum": "cache_write_tokens", "within": "input_tokens"},
        "reasoning_tokens": {"unit": "token", "sum": "reasoning_tokens", "within": "output_tokens"},
        "active_users": {"unit": "user", "unique": "user_id", "period": "month", "where": {"status": ["completed"]}},
    },
    "price_attributes": ["operation"],
    "jobs": {
        "ingestion": {
            "max_clock_ahead_seconds": 30,
            "conventions": [{"source": "beside/*", "includes": {}}],
            "reversal": {"sources": ["refunds"]},
        },
        "joins": {"completion_timeout_seconds": 60},
        "billing": {"grace_seconds": 300},
    },
}
MILLION = 1_000_000
INPUT, OUTPUT = {"input_tokens": "3"}, {"output_tokens": "12"}
COMPLETED, FAILED = {"status": "completed"}, {"status": "error"}
PLAIN = {"model": "plain", **COMPLETED}
USED = {"input_tokens": 900, "output_tokens": 80}


class Case:
    """An account: what a million of each unit costs it, what is sent of it, and what its bill must say."""

    def __init__(self, amount: str, quantities: Mapping[str, int], *sent: tuple[str, str, Mapping[str, Any]]) -> None:
        self.amount, self.quantities, self.sent = Decimal(amount), quantities, sent


PRICES: Mapping[str, Mapping[str, str]] = {
    "large": {
        **INPUT,
        **OUTPUT,
        "cached_tokens": "0.3",
        "cache_write_tokens": "4",
        "requests": "10000",
        "active_users": "2500000",
    },
    "plain": {**INPUT, **OUTPUT, "requests": "0", "active_users": "1250000"},
}
"""By model and meter. The plain one gives no tokens a price of their own."""
CASES: Mapping[str, Case] = {
    # 106 fresh ones at 3, 1,900 at 0.3, 300 at 12; and the request.
    "cached": Case(
        "0.014488",
        {"requests": 1, "input_tokens": 2_006, "cached_tokens": 1_900, "output_tokens": 300},
        (USAGE, "r1", {**COMPLETED, "input_tokens": 2_006, "cached_tokens": 1_900, "output_tokens": 300}),
    ),
    # Nothing is part of anything: 100 at 3, 5,000 at 0.3, 700 at 4, 10 at 12.
    "beside": Case(
        "0.01472",
        {
            "requests": 1,
            "input_tokens": 100,
            "cached_tokens": 5_000,
            "cache_write_tokens": 700,
            "output_tokens": 10,
        },
        (
            USAGE,
            "r1",
            {**COMPLETED, "input_tokens": 100, "cached_tokens": 5_000, "cache_write_tokens": 700, "output_tokens": 10},
        ),
    ),
    # The output has the price of reasoning: 17 at 3, 482 at 12.
    "reasoning": Case(
        "0.005835",
        {"requests": 1, "input_tokens": 17, "output_tokens": 482, "reasoning_tokens": 448},
        (
            USAGE,
            "r1",
            {**PLAIN, "input_tokens": 17, "output_tokens": 482, "reasoning_tokens": 448},
        ),
    ),
    # It failed twice, once in one record and once in two, and then did not.
    "retry": Case(
        "0.02732",
        {"requests": 2, "input_tokens": 1_800, "output_tokens": 160},
        (USAGE, "r1", FAILED),
        (USAGE, "r1", FAILED),
        (USAGE, "r1", {**COMPLETED, **USED}),
        (REQUEST, "r2", {}),
        (COMPLETION, "r2", FAILED),
        (COMPLETION, "r2", {**COMPLETED, **USED}),
    ),
    "twice": Case(
        "0.01366",
        {"requests": 1, "input_tokens": 900, "output_tokens": 80},
        (USAGE, "r1", {**COMPLETED, **USED}),
        (USAGE, "r1", {**COMPLETED, **USED}),
    ),
    # Half of it, by a price of its own for batches: 1,000 at 1.5, 100 at 6.
    "batch": Case(
        "0.0021",
        {"requests": 1, "input_tokens": 1_000, "output_tokens": 100},
        (
            USAGE,
            "r1",
            {**PLAIN, "operation": "batch", "input_tokens": 1_000, "output_tokens": 100},
        ),
    ),
    # The stream's first count came first; and of two final ones the later is the better.
    "streamed": Case(
        "0.0081",
        {"requests": 2, "input_tokens": 200, "output_tokens": 625},
        (
            USAGE,
            "r1",
            {**PLAIN, "input_tokens": 100, "output_tokens": 1, "usage_source": "partial"},
        ),
        (
            USAGE,
            "r1",
            {**PLAIN, "input_tokens": 100, "output_tokens": 500, "usage_source": "provider"},
        ),
        (USAGE, "r2", {**PLAIN, "input_tokens": 100, "output_tokens": 0}),
        (USAGE, "r2", {**PLAIN, "input_tokens": 100, "output_tokens": 125}),
    ),
    # Of three requests one has completed; the tokens of the one that was cancelled were used.
    "failed": Case(
        "0.010498",
        {"requests": 1, "input_tokens": 110, "output_tokens": 14},
        (USAGE, "r1", {**COMPLETED, "input_tokens": 50, "output_tokens": 5}),
        (USAGE, "r2", FAILED),
        (USAGE, "r3", {"status": "cancelled", "input_tokens": 60, "output_tokens": 9}),
    ),
    # It fell back to another model, which answered.
    "fallback": Case(
        "0.00366",
        {"requests": 1, "input_tokens": 900, "output_tokens": 80},
        (REQUEST, "r1", {}),
        (USAGE, "r1", FAILED),
        (USAGE, "r1", {**PLAIN, **USED}),
    ),
    # Ada counts once at 2.5, and Cyd at 1.25 with the model that answered; Bob failed, and Dan is taken back.
    "users": Case(
        "3.77",
        {"requests": 3, "active_users": 2},
        (USAGE, "r1", {**COMPLETED, "user_id": "ada"}),
        (USAGE, "r2", {**COMPLETED, "user_id": "ada"}),
        (USAGE, "r3", {**FAILED, "user_id": "bob"}),
        (REQUEST, "r4", {"user_id": "cyd"}),
        (USAGE, "r4", {**FAILED, "user_id": "cyd"}),
        (USAGE, "r4", {**PLAIN, "user_id": "cyd"}),
        (USAGE, "r5", {**COMPLETED, "user_id": "dan"}),
    ),
}


Reported = Mapping[str, str | None]
GPT: Reported = {"input_tokens": "2.5", "cached_tokens": "1.25", "output_tokens": "10", "requests": "0"}
FINAL = {"model": "gpt-4o", **COMPLETED}
THOUSAND = {"input_tokens": 1_000, "output_tokens": 100}


class Report(Case):
    """A bug report: an account with a plan of its own, whose prices are of a million, in USD."""

    def __init__(self, model: str, prices: Reported, amount: str, *sent: tuple[str, str, Mapping[str, Any]]) -> None:
        super().__init__(amount, {}, *sent)
        self.model, self.prices = model, prices


REPORTS: Mapping[str, Report] = {
    # Of 2,006 tokens 1,920 are cached; never 0.010415, which pays these twice.
    "01-cached-inside-input": Report(
        "gpt-4o",
        GPT,
        "0.005615",
        (USAGE, "r1", {**FINAL, "input_tokens": 2_006, "cached_tokens": 1_920, "output_tokens": 300}),
    ),
    "02-cache-write-tokens": Report(
        "claude-x",
        {**INPUT, "cached_tokens": "0.3", "cache_write_tokens": "3.75", "output_tokens": "15", "requests": "0"},
        "0.004575",
        (
            USAGE,
            "r1",
            {**COMPLETED, "input_tokens": 100, "cached_tokens": 5_000, "cache_write_tokens": 700, "output_tokens": 10},
        ),
    ),
    # 482 of output, once: 0.0001928; and 17 of input.
    "03-reasoning-inside-output": Report(
        "gpt-5-nano",
        {"input_tokens": "0.05", "output_tokens": "0.4", "requests": "0"},
        "0.00019365",
        (USAGE, "r1", {**COMPLETED, "input_tokens": 17, "output_tokens": 482, "reasoning_tokens": 448}),
    ),
    "05-retry-after-error": Report(
        "gpt-4o",
        GPT,
        "0.007",
        (USAGE, "r1", FAILED),
        (USAGE, "r1", FAILED),
        (USAGE, "r1", {**COMPLETED, **THOUSAND}),
        (REQUEST, "r2", {}),
        (COMPLETION, "r2", FAILED),
        (COMPLETION, "r2", {**COMPLETED, **THOUSAND}),
    ),
    "07-one-call-logged-twice": Report(
        "gpt-4o",
        GPT,
        "0.0043025",
        (USAGE, "r1", {**COMPLETED, "input_tokens": 121, "output_tokens": 400}),
        (USAGE, "r1", {**COMPLETED, "input_tokens": 121, "output_tokens": 400}),
    ),
    # Half of 0.0035.
    "15-batch-half-price": Report(
        "gpt-4o", GPT, "0.00175", (USAGE, "r1", {**COMPLETED, "operation": "batch", **THOUSAND})
    ),
    # Per million, as it was meant; per token it would cost 3,500.
    "16-price-per-million": Report("gpt-4o", GPT, "0.0035", (USAGE, "r1", {**COMPLETED, **THOUSAND})),
    # 500 of the provider, not 1 of the stream's beginning: 0.00525. Of 0 and 250 the later, once an audit has looked.
    "27-partial-then-final-usage": Report(
        "gpt-4o",
        GPT,
        "0.008",
        (USAGE, "r1", {**COMPLETED, "input_tokens": 100, "output_tokens": 0}),
        (USAGE, "r1", {**COMPLETED, "input_tokens": 100, "output_tokens": 250}),
        (USAGE, "r2", {**COMPLETED, "input_tokens": 100, "output_tokens": 1, "usage_source": "partial"}),
        (USAGE, "r2", {**COMPLETED, "input_tokens": 100, "output_tokens": 500, "usage_source": "provider"}),
    ),
    # A request costs 0.01 if it has completed: one of three has. The tokens of both that ran cost 0.000395.
    "29-failed-requests-are-not-billed": Report(
        "gpt-4o",
        {**GPT, "requests": "10000"},
        "0.010395",
        (USAGE, "r1", {**COMPLETED, "input_tokens": 50, "output_tokens": 5}),
        (USAGE, "r2", FAILED),
        (USAGE, "r3", {"status": "cancelled", "input_tokens": 60, "output_tokens": 7}),
    ),
}
BESIDE = ("beside", "02-cache-write-tokens")
"""Whose gateway counts the cache beside the input."""


def config(folder: Path, topics: Sequence[Mapping[str, Any]]) -> Path:
    (folder / "usage.json").write_text(json.dumps(CONTRACT))
    written = folder / "weir.json"
    jobs = CONFIG["jobs"]
    of_topics = {"jobs": {**jobs, "ingestion": {**jobs["ingestion"], "events": topics}}}
    written.write_text(json.dumps(CONFIG | of_topics))
    return written


def catalog() -> str:
    beginning = {"currency": "USD", "effective_from": "2026-01-01T00:00:00Z", "per": MILLION}
    of_plans = {"usual": PRICES, **{name: {report.model: report.prices} for name, report in REPORTS.items()}}
    prices: list[dict[str, Any]] = [
        {"plan": plan, **beginning, "model": model, "meter": meter, "unit_price": unit_price}
        for plan, of_plan in of_plans.items()
        for model, unit_prices in of_plan.items()
        for meter, unit_price in unit_prices.items()
    ]
    halves = [
        {**price, "conditions": {"operation": "batch"}, "unit_price": str(Decimal(price["unit_price"]) / 2)}
        for price in prices
        if (price["plan"], price["model"]) in (("usual", "plain"), ("15-batch-half-price", "gpt-4o"))
        and price["meter"] in ("input_tokens", "output_tokens")
    ]
    accounts = [
        {"account": name, "name": name, "plan": name if name in REPORTS else "usual", "currency": "USD"}
        for name in (*CASES, *REPORTS)
    ]
    plans = [{"plan": plan, "name": plan} for plan in of_plans]
    return json.dumps({"plans": plans, "accounts": accounts, "prices": prices + halves})


def events() -> Iterator[str]:
    """A line each; what is sent later occurred later."""
    now = datetime.now(UTC)
    for account, case in {**CASES, **REPORTS}.items():
        asked = case.model if isinstance(case, Report) else "large"
        for number, (event_type, request, data) in enumerate(case.sent):
            model = {} if event_type == COMPLETION else {"model": asked}
            said = {
                "specversion": "1.0",
                "type": event_type,
                "source": f"{'beside' if account in BESIDE else 'inside'}/gateway",
                "id": f"{account}/{number}",
                "subject": account,
                "time": (now - timedelta(seconds=30 - number)).isoformat(),
                "data": {"request_id": f"{account}/{request}", **model, **data},
            }
            yield json.dumps(said) + "\n"


@dataclass(frozen=True)
class Metered:
    """A stack on which all was sent, and what was billed (`bills`) before a reversal and an audit, and after both.

    `checks`: what the audit said, by its checks.
    """

    stack: Stack
    live: Mapping[str, Any]
    audited: Mapping[str, Any]
    checks: Mapping[str, Mapping[str, Any]]


@pytest.fixture(scope="module")
def metered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Metered]:
    folder = tmp_path_factory.mktemp("meant")
    data_dir = folder / "weir"
    (folder / "catalog.json").write_text(catalog())
    first, second = by_topic(list(events()))

    def weir(*command: str) -> str:
        ended = weir_at(data_dir, *command)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    def produce(topic: str, lines: Sequence[str]) -> None:
        (folder / "events.jsonl").write_text("".join(lines))
        weir("produce", "--topic", topic, str(folder / "events.jsonl"))

    try:
        weir("up", "--detach", "--config", str(config(folder, TOPICS)))
        weir("catalog", "apply", str(folder / "catalog.json"), "--yes")
        produce(EVENTS_TOPIC, first[: len(first) // 2])
        produce(CALLS, second[: len(second) // 2])
        stack = running_stack(data_dir)
        kill_ingestion(stack)
        produce(EVENTS_TOPIC, first[len(first) // 2 :])
        produce(CALLS, second[len(second) // 2 :])
        weir("drain", "--timeout", "240")
        produce(CALLS, first)
        produce(EVENTS_TOPIC, second)
        weir("drain", "--include-waiting", "--timeout", "240")
        live = bills(stack)
        weir("usage", "reverse", "users/r5", "--reason", "by mistake")
        weir("drain", "--timeout", "120")
        checks = {row["check"]: row for row in json.loads(weir("audit", "--format", "json"))}
        weir("drain", "--timeout", "120")
        yield Metered(stack, live, bills(stack), checks)
    finally:
        weir_at(data_dir, "down")


def by_topic(lines: Sequence[str]) -> tuple[list[str], list[str]]:
    """Lines of every second account, and those of the others: what an account sends first comes first."""
    accounts = [json.loads(line)["subject"] for line in lines]
    numbers = {account: number for number, account in enumerate(dict.fromkeys(accounts))}
    parts: tuple[list[str], list[str]] = ([], [])
    for account, line in zip(accounts, lines, strict=True):
        parts[numbers[account] % 2].append(line)
    return parts


def kill_ingestion(stack: Stack) -> None:
    """With SIGKILL, all its processes; the supervisor starts it again."""
    killed = stack.process("ingestion").process
    assert killed is not None
    os.killpg(killed.pid, signal.SIGKILL)
    wait_until(lambda: running_stack(stack.data_dir).process("ingestion").process not in (killed, None), "a restart")


def bills(stack: Stack) -> Mapping[str, Any]:
    """By account what it pays, how much has no price, and what each meter has counted."""
    found = weir_at(stack.data_dir, "usage", "--window", "P1M", "--group-by", "account,meter", "--format", "json")
    assert found.returncode == 0, found.stderr
    of: dict[str, tuple[Decimal, Decimal, dict[str, Decimal]]] = {}
    for row in json.loads(found.stdout):
        paid, unpriced, counted = of.get(row["account"], (Decimal(0), Decimal(0), {}))
        quantity = Decimal(row["quantity"])
        of[row["account"]] = (
            paid + Decimal(row["amount"]),
            unpriced + Decimal(row["unpriced_quantity"]),
            counted | ({row["meter"]: quantity} if quantity else {}),
        )
    return of


def of_cases(found: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: bill for name, bill in found.items() if name in CASES}


@pytest.mark.timeout(600)
def test_each_case_is_billed_as_its_provider_means_it(metered: Metered) -> None:
    expected = {name: (case.amount, Decimal(0), case.quantities) for name, case in CASES.items()}
    # What only an audit knows: the later of two final counts, and that another model answered than was asked.
    first_count = {**CASES["streamed"].quantities, "output_tokens": 500}
    live = {
        "streamed": (Decimal("0.0066"), Decimal(0), first_count),
        "fallback": (Decimal("0.01366"), Decimal(0), CASES["fallback"].quantities),
        # Four requests at 0.01, and Ada, Cyd and Dan at 2.5.
        "users": (Decimal("7.54"), Decimal(0), {"requests": 4, "active_users": 3}),
    }
    assert of_cases(metered.live) == expected | live
    assert of_cases(metered.audited) == expected


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", REPORTS)
def test_a_bug_report_costs_the_amount_that_it_says(metered: Metered, name: str) -> None:
    amount, unpriced, _ = metered.audited[name]
    assert (amount, unpriced) == (REPORTS[name].amount, 0)
    # Which of two final counts is the later, only an audit looks at.
    later = Decimal("0.0025") if name.startswith("27") else 0
    assert metered.live[name][0] == amount - later


@pytest.mark.timeout(600)
def test_prices_of_a_million_tokens_written_for_one_are_refused_and_their_cost_is_said(
    metered: Metered, tmp_path: Path
) -> None:
    """Of the report 16: one request of 1,000 and 100 tokens would cost 3,500 USD."""
    of_plan = {"plan": "16-price-per-million", "model": "other", "currency": "USD"}
    of_token = [
        {**of_plan, "meter": meter, "unit_price": unit_price, "effective_from": "2026-01-01T00:00:00Z"}
        for meter, unit_price in (("input_tokens", "2.5"), ("output_tokens", "10"))
    ]
    (tmp_path / "catalog.json").write_text(json.dumps({"prices": of_token}))
    refused = weir_at(metered.stack.data_dir, "catalog", "apply", str(tmp_path / "catalog.json"))
    said = refused.stdout + refused.stderr
    assert refused.returncode != 0, said
    assert "2.5 per token: one request of 1,200 tokens costs 3,000 USD; did you mean per: 1000000?" in said
    assert "10 per token: one request of 1,200 tokens costs 12,000 USD; did you mean per: 1000000?" in said


def events_in_journal(stack: Stack) -> pl.DataFrame:
    """What gateways and people sent: topic, id, type, disposition."""
    rows = pl.DataFrame(DeltaTable(f"{stack.tables}/{Table.JOURNAL}").to_pyarrow_table())
    is_sent = ~pl.col("topic").is_in([*CatalogTopic]) & pl.col("source").ne_missing(HEARTBEAT_SOURCE)
    return rows.filter(is_sent).select("topic", "id", "type", "disposition")


def listed(stack: Stack) -> Mapping[str, Any]:
    """`weir topics list`, by topic."""
    found = weir_at(stack.data_dir, "topics", "list", "--format", "json")
    assert found.returncode == 0, found.stderr
    return {row["topic"]: row for row in json.loads(found.stdout)}


@pytest.mark.timeout(600)
def test_an_event_that_comes_in_two_topics_is_billed_once_and_the_audit_proves_both(metered: Metered) -> None:
    rows, sent = events_in_journal(metered.stack), len(list(events()))
    counts = {(topic, said): count for topic, said, count in rows.group_by("topic", "disposition").len().iter_rows()}
    assert {said for _, said in counts} == {Disposition.ACCEPTED, Disposition.DUPLICATE}
    assert sum(count for (_, said), count in counts.items() if said == Disposition.DUPLICATE) == sent
    assert min(counts.values()) > sent // 4, "each topic has firsts and repeats"
    of_calls = rows.filter(pl.col("type").is_in([USAGE, REQUEST, COMPLETION]), pl.col("disposition") == "accepted")
    assert of_calls["id"].n_unique() == len(of_calls) == sent
    assert {check: row["holds"] for check, row in metered.checks.items() if not row["holds"]} == {}
    assert metered.checks


@pytest.mark.timeout(600)
def test_topics_are_listed_and_one_with_unread_records_is_not_removed(metered: Metered, tmp_path: Path) -> None:
    found = listed(metered.stack)
    assert [*found] == [EVENTS_TOPIC, CALLS]
    assert all(row["frontier"] for row in found.values())
    remove = ("topics", "remove", "--reason", "it moved", "--timeout", "0")
    unknown = weir_at(metered.stack.data_dir, *remove, "other")
    assert (unknown.returncode, "there is no topic other" in unknown.stderr) == (1, True), unknown.stderr
    (tmp_path / "event.jsonl").write_text(next(events()))
    with frozen(metered.stack, "ingestion"):
        sent = weir_at(metered.stack.data_dir, "produce", "--topic", CALLS, str(tmp_path / "event.jsonl"))
        assert sent.returncode == 0, sent.stderr
        refused = weir_at(metered.stack.data_dir, *remove, CALLS)
    assert (refused.returncode, "calls: 1 records are unread" in refused.stderr) == (1, True), refused.stderr


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_topic_that_was_removed_is_read_no_more_and_nothing_that_it_brought_changes(
    metered: Metered, tmp_path: Path
) -> None:
    stack = metered.stack

    def weir(*command: str) -> str:
        ended = weir_at(stack.data_dir, *command)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    (tmp_path / "event.jsonl").write_text(next(events()).replace('"id": "', '"id": "later/'))
    said = weir("topics", "remove", CALLS, "--reason", "it moved")
    assert said.startswith("calls ends when ingestion starts without it")
    before = len(events_in_journal(stack))
    weir("down")
    alone = config(stack.data_dir.parent, TOPICS[:1])
    weir("up", "--detach", "--config", str(alone))
    weir("drain", "--timeout", "120")
    weir("produce", "--topic", CALLS, str(tmp_path / "event.jsonl"))
    assert listed(running_stack(stack.data_dir))[CALLS]["unread"] >= 1
    assert len(events_in_journal(stack)) == before
    assert of_cases(bills(stack)) == of_cases(metered.audited)
