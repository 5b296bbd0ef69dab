"""This version goes on from an older one's data folder: what was metered stays, and what was open is decided."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from deployment.stack import Stack
from tests.e2e import older
from tests.e2e.conftest import OlderFolder, running_on, weir_at
from tests.e2e.metering import DRAIN_SECONDS, Customer, drain, new_customer, weir
from tests.e2e.older.metered import MINUTE, NOTHING, Metered, added, metered
from tests.e2e.watched import STEADY_SOURCE

CLOSED = ("closed", "corrected")
UNSHARED = pytest.param(older.UNSHARED, marks=pytest.mark.long)
WITH_CUSTOMER = pytest.mark.parametrize("upgraded", [UNSHARED], indirect=True, scope="module")
"""For what only that folder holds: a customer whose last events were unread, and what the commands listed."""


@dataclass(frozen=True)
class Upgraded:
    """A stack of this version, what the older one had metered, and what is metered when all that it left is decided."""

    stack: Stack
    then: Metered
    now: Metered

    def has(self, name: str) -> bool:
        """Whether the folder has brought this file."""
        return (self.stack.data_dir / name).exists()

    def content(self, name: str) -> Any:
        """What a JSON file that the folder has brought holds."""
        return json.loads((self.stack.data_dir / name).read_text())

    def customer(self) -> Customer:
        """The one whose last events were unread."""
        known = self.content(older.CUSTOMER)
        return Customer(known["account"], known["pairs"])

    def listed(self, command: str, columns: list[str]) -> list[dict[str, Any]]:
        """What a command lists now, of these columns."""
        listed = weir(self.stack, command, "--format", "json")
        assert listed.returncode == 0, listed.stderr
        return [{name: row[name] for name in columns} for row in json.loads(listed.stdout)]


# The shared stack comes last: one stack at a time is enough for the machine.
@pytest.fixture(scope="module", params=[UNSHARED, older.SHARED])
def upgraded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upgraded]:
    """Nothing new was sent to it."""
    if request.param == older.SHARED:
        folder: OlderFolder = request.getfixturevalue("older_folder")
        yield _upgraded(request.getfixturevalue("stack"), folder.metered)
        return
    data_dir = tmp_path_factory.mktemp("upgraded") / "weir"
    then = older.unpack(request.param, data_dir)
    with running_on(data_dir) as stack:
        yield _upgraded(stack, then)


def _upgraded(stack: Stack, then: Metered) -> Upgraded:
    drained = weir(stack, "drain", "--include-waiting", "--timeout", str(DRAIN_SECONDS))
    assert drained.returncode == 0, drained.stdout + drained.stderr
    return Upgraded(stack, then, metered(stack.postgres_url, stack.tables))


def test_a_closed_window_changes_only_by_stragglers(upgraded: Upgraded) -> None:
    then, now = upgraded.then, upgraded.now
    corrections = now.corrections(then)
    closed = [key for key in now.windows | then.windows if key[-1] + MINUTE <= then.closed_until]
    expected = {key: added(then.windows.get(key, NOTHING), corrections.get(key, NOTHING)) for key in closed}
    assert {key: now.windows.get(key) for key in closed} == expected
    assert any(key in then.windows and key not in corrections for key in closed)


def test_an_open_window_only_grows(upgraded: Upgraded) -> None:
    then, now = upgraded.then, upgraded.now
    was_open = {key: total for key, total in then.windows.items() if key[-1] + MINUTE > then.closed_until}
    assert was_open
    less = [
        key
        for key, (quantity, amount) in was_open.items()
        if now.windows[key][0] < quantity or now.windows[key][1] < amount
    ]
    assert less == []
    assert sum(q for q, _ in now.windows.values()) > sum(q for q, _ in then.windows.values())


def test_a_straggler_stays_as_it_was_decided(upgraded: Upgraded) -> None:
    assert upgraded.then.stragglers
    assert upgraded.then.stragglers.items() <= upgraded.now.stragglers.items()


@pytest.mark.parametrize("table", ["journal", "usage"])
def test_every_row_of_a_table_is_as_it_was_written(upgraded: Upgraded, table: str) -> None:
    then: pl.DataFrame = getattr(upgraded.then, table)
    now: pl.DataFrame = getattr(upgraded.now, table)
    assert_frame_equal(now.filter(pl.col("lsn") <= then["lsn"].max()).select(then.columns), then, check_exact=True)
    assert len(now) > len(then)


def test_a_session_stays_as_it_was(upgraded: Upgraded) -> None:
    # What is unread is of the customer, whose sessions go on.
    account = upgraded.customer().account if upgraded.has(older.CUSTOMER) else None
    then, now = (
        {session: held for session, held in metered.sessions.items() if held[0] != account}
        for metered in (upgraded.then, upgraded.now)
    )
    assert then
    assert now == then


@WITH_CUSTOMER
def test_an_open_session_goes_on(upgraded: Upgraded) -> None:
    customer = upgraded.customer()
    then, now = (
        {held[1]: held for held in metered.sessions.values() if held[0] == customer.account and held[-1] is None}
        for metered in (upgraded.then, upgraded.now)
    )
    assert {user: held[2] for user, held in now.items()} == {user: held[2] for user, held in then.items()}
    assert sum(held[4] for held in now.values()) == customer.pairs > sum(held[4] for held in then.values())


@WITH_CUSTOMER
def test_a_pending_request_of_an_older_release_is_completed(upgraded: Upgraded) -> None:
    customer, last = upgraded.customer(), upgraded.then.journal["lsn"].max()
    outcomes = upgraded.now.usage.filter(pl.col("account") == customer.account)
    assert outcomes["outcome"].unique().to_list() == ["matched"]
    across = outcomes.filter(pl.col("request_lsn") <= last, pl.col("completion_lsn") > last)
    assert len(across) == upgraded.content(older.CUSTOMER)["waiting"]
    assert len(outcomes) == customer.pairs


@WITH_CUSTOMER
def test_a_repeat_of_an_event_of_the_older_release_is_a_duplicate(upgraded: Upgraded) -> None:
    last, waiting = upgraded.then.journal["lsn"].max(), upgraded.content(older.CUSTOMER)["waiting"]
    copies = upgraded.now.journal.filter(pl.col("lsn") > last, pl.col("first_lsn") <= last)
    assert copies["disposition"].to_list() == ["duplicate"] * waiting


@WITH_CUSTOMER
@pytest.mark.parametrize("command", ["usage", "sessions", "stragglers"])
def test_closed_windows_are_listed_as_by_the_older_release(upgraded: Upgraded, command: str) -> None:
    changed = {(key[-1], *key[:4]) for key in upgraded.now.corrections(upgraded.then)}
    shown = [row for row in upgraded.content(older.SHOWN)[command] if row.get("state", "closed") in CLOSED]
    stays = [row for row in shown if command != "usage" or _window(row) not in changed]
    assert stays
    listed = upgraded.listed(command, columns=list(stays[0]))
    assert [row for row in stays if row not in listed] == []


def _window(row: dict[str, Any]) -> tuple[Any, ...]:
    start = datetime.fromisoformat(row["window_start"])
    return start, row["account"], row["model"], row["meter"], row["currency"]


def test_traffic_that_an_older_release_metered_is_billed_as_its_truth_says(upgraded: Upgraded) -> None:
    compared = weir_at(upgraded.stack.data_dir, "compare", str(upgraded.stack.data_dir / older.TRUTH))
    assert compared.returncode == 0, compared.stdout + compared.stderr


def test_new_traffic_is_billed_with_what_was_before(upgraded: Upgraded, tmp_path: Path) -> None:
    stack = upgraded.stack
    # Of a gateway that the next tests hear all the time: one of its own would be silent while they look at alerts.
    customer = (
        upgraded.customer()
        if upgraded.has(older.CUSTOMER)
        else replace(new_customer(stack, tmp_path), gateway=STEADY_SOURCE)
    )
    if customer.pairs:
        assert customer.billed(stack) == customer.expected()
    customer.send(stack, tmp_path, 10)
    drain(stack)
    assert customer.billed(stack) == customer.expected()
