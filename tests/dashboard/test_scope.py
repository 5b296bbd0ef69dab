"""A view of some accounts never shows another's rows: every question there is, found by looking, on real data of two.

Each is asked before and after another account's day is added, with arguments that name that account too. Its answer
must be the same both times, and hold none of the other's names; with the scope of all accounts it must hold them.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import itertools
import pkgutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, get_type_hints

import psycopg
import pytest

import dashboard.queries
from dashboard.backend import Backend, NotConnected, Unavailable
from dashboard.queries.bills import Line
from dashboard.queries.corrections import CorrectionFilter
from dashboard.queries.invoices import InvoiceFilter
from dashboard.queries.models import MAX_MERGED_BYTES, ModelsFilter
from dashboard.queries.patterns import MatchFilter
from dashboard.queries.sessions import Session
from dashboard.queries.stragglers import StragglerFilter
from dashboard.queries.thresholds import MAX_LIMITS
from dashboard.queries.watches import HitFilter
from dashboard.queries.windows import By, WindowFilter
from dashboard.scope import Scope
from dashboard.settings import Settings
from metering.invoices import USAGE, Key
from tests.dashboard.seeding import Day, add, seed
from tests.dashboard.test_models_page import BY_ACCOUNT, sketched
from tests.database_rows import progress
from tests.pipelines.panes import fold, pane

MINE, OTHERS = "acme", "globex"
MARKER = "others-"
NOW = datetime.now(UTC)

CLOCKS = ("feed", "files", "files_read", "read_at")
OF_NOBODY = {"read_applications", "read_dimensions", "read_view_names"}
"""Questions whose answers hold no row of any account."""


def questions() -> Iterator[Callable[..., Any]]:
    """Every public function of dashboard.queries that asks a backend."""
    for found in pkgutil.iter_modules(dashboard.queries.__path__):
        module = importlib.import_module(f"dashboard.queries.{found.name}")
        for name, function in inspect.getmembers(module, inspect.isfunction):
            is_own = function.__module__ == module.__name__ and not name.startswith("_")
            if is_own and next(iter(get_type_hints(function).values()), None) is Backend:
                yield function


def arguments(function: Callable[..., Any]) -> list[dict[str, Any]]:
    """Every combination of arguments worth asking with. A new parameter must be given values here."""
    line = Line(
        OTHERS, f"{MARKER}small-1", "requests", "request", "USD", 10, 1, Decimal(1), NOW - timedelta(days=2), NOW
    )
    session = Session(1, OTHERS, f"{MARKER}u-1", NOW - timedelta(hours=2), NOW, 1, 1, "open")
    worth: dict[str, list[Any]] = {
        "account": [None, MINE, OTHERS],
        "model": [None, f"{MARKER}small-1"],
        "prefix": ["", MARKER, MINE, OTHERS],
        "user": ["u-1", f"{MARKER}u-1"],
        "text": [f"r-{100_003:06d}", f"{MARKER}r-{100_003:06d}", "r-000003"],
        "days": [35],
        "hours": [24],
        "job": ["billing"],
        "dimension": ["api_key_id"],
        "now": [NOW],
        "month": [(NOW - timedelta(hours=1)).date().replace(day=1)],
        "retracted": [True],
        "line": [line, dataclasses.replace(line, account=MINE, model="small-1", currency="EUR")],
        "sessions": [(session,), (dataclasses.replace(session, account=MINE, user_id="u-1"),)],
        "start": [(NOW - timedelta(minutes=minutes)).replace(second=0, microsecond=0) for minutes in (3, 4)],
        "end": [NOW],
        "step": [timedelta(seconds=30)],
        "path": ["/api/v1/alerts"],
        "question": [None],
        "query": ["up"],
        "invoice": ["weir-1", f"{MARKER}weir-1"],
        "currency": ["EUR", "USD"],
        "page": [1],
        "max_merged_bytes": [MAX_MERGED_BYTES],
        "max_limits": [MAX_LIMITS],
        "key": [
            Key(NOW.date().replace(day=1), USAGE, f"{marker}small-1", "requests", 10, None) for marker in ("", MARKER)
        ],
        "chosen": [
            *[WindowFilter(hours=3, by=by, account=account) for by in By for account in (None, MINE, OTHERS)],
            *[StragglerFilter(account=account) for account in (None, MINE, OTHERS)],
            *[CorrectionFilter(account=account) for account in (None, MINE, OTHERS)],
            *[InvoiceFilter(account=account) for account in (None, MINE, OTHERS)],
            *[ModelsFilter(account=account) for account in (None, MINE, OTHERS)],
            *[MatchFilter(account=account, all_versions=True) for account in (None, MINE, OTHERS)],
            *[HitFilter(account=account) for account in (None, MINE, OTHERS)],
        ],
    }
    names = list(inspect.signature(function).parameters)[1:]
    assert set(names) <= worth.keys(), f"tell this test what to ask {function.__name__} with: {names}"
    hints = get_type_hints(function)
    fitting = [[value for value in worth[name] if name != "chosen" or isinstance(value, hints[name])] for name in names]
    if "account" in names and hints["account"] is str:
        fitting[names.index("account")] = [MINE, OTHERS]
    return [dict(zip(names, values, strict=True)) for values in itertools.product(*fitting)]


def plain(value: Any) -> Any:
    """An answer without what tells the time of asking."""
    if dataclasses.is_dataclass(value):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {name: plain(part) for name, part in fields.items() if name not in CLOCKS}
    if isinstance(value, tuple | list):
        return [plain(part) for part in value]
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    return value


def answers(backend: Backend) -> dict[str, Any]:
    """(question and arguments) → what it answers, or that it is refused."""
    found = {}
    for question in questions():
        for given in arguments(question):
            try:
                answer = plain(question(backend, **given))
            except NotConnected:
                answer = "refused"
            found[f"{question.__module__}.{question.__name__} {given}"] = answer
    return found


def test_no_query_returns_rows_of_another_account(connected: str, database: str, tables: Path) -> None:
    settings = Settings(postgres_url=connected, tables=str(tables))
    scoped = Backend(settings.model_copy(update={"scope": Scope(frozenset({MINE}))}))
    everyone = Backend(settings)
    seed(database, tables, Day(now=NOW, accounts=(MINE,)))
    measured(database, MINE)
    progress(database, "analytics", NOW)
    before = answers(scoped)

    add(database, tables, Day(now=NOW, accounts=(OTHERS,), marker=MARKER, seed=6, first_lsn=100_001))
    measured(database, OTHERS, MARKER)
    after = answers(scoped)
    seen = answers(everyone)

    assert len(before) > 40
    for asked, answer in after.items():
        name = asked.split(" ")[0].rpartition(".")[2]
        if name in OF_NOBODY:
            continue
        assert answer == before[asked], f"{asked} changed when another account's rows came"
        assert MARKER not in repr(answer), asked
        assert OTHERS not in repr(answer), asked
    showing = {
        asked.split(" ")[0] for asked, answer in seen.items() if MARKER in repr(answer) or OTHERS in repr(answer)
    }
    telling = {asked.split(" ")[0] for asked, answer in before.items() if answer != "refused"}
    hidden = {name for name in telling - showing if name.rpartition(".")[2] not in OF_NOBODY}
    by_number = {name for name in hidden if _differs(name, before, seen)}
    assert hidden == by_number, "these questions show nothing of anybody: the test could not fail"


def measured(database: str, account: str, marker: str = "") -> None:
    """A minute of a view, of so few values that its percentiles are exact."""
    sketches = sketched(range(9), range(1, 11))
    keys: list[str | None] = [f"{marker}small-1", account]
    of_account = pane(BY_ACCOUNT, "health", NOW - timedelta(minutes=5), keys, 70, errors="0", tokens="70", **sketches)
    with psycopg.connect(database) as connection:
        fold(connection, BY_ACCOUNT, of_account)


def _differs(name: str, some: dict[str, Any], all_of_them: dict[str, Any]) -> bool:
    return any(some[asked] != all_of_them[asked] for asked in some if asked.split(" ")[0] == name)


def test_views_of_all_accounts_are_refused_in_a_limited_scope() -> None:
    address = "http://127.0.0.1:1"
    scope = Scope(frozenset({MINE}))
    backend = Backend(Settings(prometheus_url=address, alertmanager_url=address, scope=scope))
    asked = 0
    for question in questions():
        if question.__module__.rpartition(".")[2] in ("alerts", "audits", "lag", "prometheus"):
            for given in arguments(question):
                with pytest.raises(NotConnected, match="shows all accounts"):
                    question(backend, **given)
                asked += 1
    assert asked >= 6


def test_a_scoped_view_refuses_the_owner_of_the_tables(database: str) -> None:
    backend = Backend(Settings(postgres_url=database, scope=Scope(frozenset({MINE}))))
    with pytest.raises(Unavailable, match="connect as weir_dashboard"), backend.snapshot():
        pass


def test_a_transaction_reads_only_and_not_for_ever(connected: str) -> None:
    with Backend(Settings(postgres_url=connected)).snapshot() as cursor:
        limits = cursor.execute(
            "SELECT current_setting('transaction_read_only') AS reads, current_setting('statement_timeout') AS timeout"
        ).fetchone()
    assert limits == {"reads": "on", "timeout": "5s"}


@pytest.mark.parametrize(
    ("text", "accounts"),
    [(None, None), ("acme", {"acme"}), (" acme , globex,", {"acme", "globex"})],
)
def test_a_scope_is_read_from_the_environment(text: str | None, accounts: set[str] | None) -> None:
    assert Scope.parse(text).accounts == accounts


@pytest.mark.parametrize("text", ["", " ", ",", " , "])
def test_an_empty_scope_is_refused_instead_of_showing_all(text: str) -> None:
    with pytest.raises(ValueError, match="names no account"):
        Settings.of({"WEIR_ACCOUNTS": text})
