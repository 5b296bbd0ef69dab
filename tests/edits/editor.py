"""Random edits of a catalog by SQL, and the history of each of its rows: what the database has committed, in order."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any

import psycopg

PEOPLE = ("ann", "bob")
MODELS = ("m0", "m1", "m2")
METERS = ("requests", "input_tokens", "output_tokens")
CURRENCIES = ("EUR", "USD")
ZONES = ("UTC", "Europe/Berlin", "America/New_York")
ACCOUNTS, PLANS = 6, 3
MAX_STATEMENTS = 4
ROLLED_BACK = 0.05
PATIENCE_SECONDS = 120.0

Values = tuple[Any, ...]
PriceKey = tuple[str, str, str, str, datetime]
"""Plan, model, meter, currency, and since when it holds."""


@dataclass(frozen=True)
class State:
    """What a row has said since a transaction. `values` None: it was deleted; a plan's are its name.

    `mark` finds it in what was captured: when it was changed, or, of a deletion, when what was deleted was. No
    transaction changes a row twice.
    """

    values: Values | None
    mark: datetime
    by: str = ""
    """Who changed it; nobody knows of a deletion."""


@dataclass
class History:
    """Of each row what it has said, in the order of the commits. Values: a price; name, plan, currency, zone, since."""

    prices: dict[PriceKey, list[State]] = field(default_factory=dict)
    accounts: dict[str, list[State]] = field(default_factory=dict)
    plans: dict[str, list[State]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)


Draft = list[tuple[dict[Any, list[State]], Any, State, str]]
"""What a transaction would add to a history: where, of which row, what, and how that is counted."""

_PRICE = """
    INSERT INTO catalog.prices AS row (plan, model, meter, currency, effective_from, unit_price)
    VALUES (%s, %s, %s, %s, %s, %s)
    ON CONFLICT (plan, model, meter, currency, effective_from) DO UPDATE SET unit_price = excluded.unit_price
    RETURNING changed_at
"""
_NO_PRICE = """
    DELETE FROM catalog.prices WHERE (plan, model, meter, currency, effective_from) = (%s, %s, %s, %s, %s)
    RETURNING changed_at
"""
_ACCOUNT = """
    INSERT INTO catalog.accounts (account, name, plan, currency, timezone, effective_from)
    VALUES (%s, %s, %s, %s, %s, %s)
    ON CONFLICT (account) DO UPDATE SET (name, plan, currency, timezone, effective_from)
        = (excluded.name, excluded.plan, excluded.currency, excluded.timezone, excluded.effective_from)
    RETURNING changed_at, coalesce(effective_from, changed_at)
"""
_PLAN = """
    INSERT INTO catalog.plans (plan, name) VALUES (%s, %s) ON CONFLICT (plan) DO UPDATE SET name = excluded.name
    RETURNING changed_at
"""


class Editor:
    """One person after the other, each with a transaction. What `history` says was committed."""

    def __init__(self, postgres_url: str, names: str, random: Random, instants: Sequence[datetime]) -> None:
        """`names` begins every name; prices and accounts hold from one of `instants`, or from about now."""
        self._url, self._names, self._random, self._instants = postgres_url, names, random, instants
        self.history = History()

    @property
    def accounts(self) -> list[str]:
        """Those that there may be."""
        return [f"{self._names}-a{number}" for number in range(ACCOUNTS)]

    def begin(self) -> None:
        """Plans, accounts and some prices, so that most usage has one from the start."""

        def all_of_it(sql: psycopg.Connection[Any], draft: Draft) -> None:
            for number in range(PLANS):
                self._plan(sql, draft, f"{self._names}-p{number}")
                for model in MODELS:
                    for meter in METERS:
                        for currency in CURRENCIES:
                            key = (f"{self._names}-p{number}", model, meter, currency, self._instants[0])
                            self._price(sql, draft, key)
            for account in self.accounts:
                self._account(sql, draft, account)

        self._transact(all_of_it)

    def edit(self) -> None:
        """A transaction of one to four statements, or one that sets up a plan and moves an account to it."""
        draws: Sequence[Callable[[psycopg.Connection[Any], Draft], None]] = (
            self._any_price,
            self._withdraw,
            self._any_account,
            self._close,
            self._rename,
            self._new_plan,
        )
        drawn = self._random.choices(draws, (38, 16, 20, 6, 6, 4), k=self._random.randint(1, MAX_STATEMENTS))

        def statements(sql: psycopg.Connection[Any], draft: Draft) -> None:
            for draw in drawn:
                draw(sql, draft)

        self._transact(statements, rolls_back=self._random.random() < ROLLED_BACK)

    def _transact(
        self, statements: Callable[[psycopg.Connection[Any], Draft], None], *, rolls_back: bool = False
    ) -> None:
        """Whether a commit that was never answered counts is asked of the database; what did not is left out."""
        draft: Draft = []
        number: str | None = None
        by = self._random.choice(PEOPLE)
        try:
            # Prices are drawn: many are 100 times above or below others, and meant so.
            session = f"-c weir.changed_by={by} -c weir.confirms_prices=yes"
            with psycopg.connect(self._url, connect_timeout=5, options=session) as sql:
                row = sql.execute("SELECT pg_current_xact_id()::text").fetchone()
                assert row is not None
                number = row[0]
                statements(sql, draft)
                if rolls_back:
                    sql.rollback()
        except psycopg.OperationalError:
            self.history.counts["connections that broke"] += 1
            if number is None or not self._is_committed(number):
                return
        if rolls_back:
            self.history.counts["transactions rolled back"] += 1
            return
        self._remember(draft, by)

    def _remember(self, draft: Draft, by: str) -> None:
        counts, tables = self.history.counts, set()
        for states, key, state, what in draft:
            said = states.setdefault(key, [])
            # A row that says what it said keeps its author, and when it was changed: nothing has.
            if not said or (said[-1].values, said[-1].mark) != (state.values, state.mark):
                said.append(replace(state, by=by))
                counts[what] += 1
                counts["edits"] += 1
                tables.add(id(states))
        counts["transactions"] += bool(tables)
        counts["transactions over several tables"] += len(tables) > 1

    def _is_committed(self, number: str) -> bool:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                with psycopg.connect(self._url, connect_timeout=5) as sql:
                    row = sql.execute("SELECT pg_xact_status(%s::xid8)", [number]).fetchone()
                if row is not None and row[0] in ("committed", "aborted"):
                    self.history.counts["commits that nobody answered"] += row[0] == "committed"
                    return bool(row[0] == "committed")
            except psycopg.OperationalError:
                pass
            if time.monotonic() > deadline:
                raise TimeoutError(f"the database does not say what became of transaction {number}")
            time.sleep(0.2)

    def _any_price(self, sql: psycopg.Connection[Any], draft: Draft) -> None:
        plan = f"{self._names}-p{self._random.randrange(PLANS)}"
        drawn = [self._random.choice(names) for names in (MODELS, METERS, CURRENCIES)]
        self._price(sql, draft, (plan, drawn[0], drawn[1], drawn[2], self._instant()))

    def _price(self, sql: psycopg.Connection[Any], draft: Draft, key: PriceKey) -> None:
        if self._is_drafted(draft, key):
            return
        unit_price = Decimal(self._random.randrange(1, 10**6)).scaleb(-self._random.choice((2, 7, 12)))
        row = sql.execute(_PRICE, [*key, unit_price]).fetchone()
        assert row is not None
        when = "backdated" if key[-1] <= row[0] else "future"
        draft.append((self.history.prices, key, State((unit_price,), row[0]), f"prices, {when}"))

    def _withdraw(self, sql: psycopg.Connection[Any], draft: Draft) -> None:
        there = [key for key, said in self.history.prices.items() if said[-1].values is not None]
        if self._random.random() < 0.8:
            # Of those that begin with everything else few, or soon nothing would have a price.
            there = [key for key in there if key[-1] != self._instants[0]]
        if not there or self._is_drafted(draft, key := self._random.choice(there)):
            return
        row = sql.execute(_NO_PRICE, [*key]).fetchone()
        if row is not None:
            draft.append((self.history.prices, key, State(None, row[0]), "prices deleted"))

    def _any_account(self, sql: psycopg.Connection[Any], draft: Draft) -> None:
        self._account(sql, draft, self._random.choice(self.accounts))

    def _account(self, sql: psycopg.Connection[Any], draft: Draft, account: str, plan: str | None = None) -> None:
        if self._is_drafted(draft, account):
            return
        plan = plan or f"{self._names}-p{self._random.randrange(PLANS)}"
        since = self._random.choice((None, None, self._instant()))
        said = ("A", plan, self._random.choice(CURRENCIES), self._random.choice(ZONES))
        row = sql.execute(_ACCOUNT, [account, *said, since]).fetchone()
        assert row is not None
        when = "from now on" if since is None else "backdated" if since <= row[0] else "future"
        draft.append((self.history.accounts, account, State((*said, row[1]), row[0]), f"accounts, {when}"))

    def _close(self, sql: psycopg.Connection[Any], draft: Draft) -> None:
        account = self._random.choice(self.accounts)
        if self._is_drafted(draft, account):
            return
        row = sql.execute("DELETE FROM catalog.accounts WHERE account = %s RETURNING changed_at", [account]).fetchone()
        if row is not None:
            draft.append((self.history.accounts, account, State(None, row[0]), "accounts deleted"))

    def _rename(self, sql: psycopg.Connection[Any], draft: Draft) -> None:
        self._plan(sql, draft, f"{self._names}-p{self._random.randrange(PLANS)}")

    def _plan(self, sql: psycopg.Connection[Any], draft: Draft, plan: str) -> None:
        if self._is_drafted(draft, plan):
            return
        name = f"Plan {self._random.randrange(100)}"
        row = sql.execute(_PLAN, [plan, name]).fetchone()
        assert row is not None
        draft.append((self.history.plans, plan, State((name,), row[0]), "plans"))

    def _new_plan(self, sql: psycopg.Connection[Any], draft: Draft) -> None:
        """With its prices, and an account that moves to it: three tables."""
        plan = f"{self._names}-p{len(self.history.plans)}"
        self._plan(sql, draft, plan)
        for meter in METERS:
            self._price(
                sql, draft, (plan, self._random.choice(MODELS), meter, self._random.choice(CURRENCIES), self._instant())
            )
        self._account(sql, draft, self._random.choice(self.accounts), plan)

    def _instant(self) -> datetime:
        if self._random.random() < 0.8:
            return self._random.choice(self._instants)
        # As a person does who has no round hour in mind.
        return datetime.now(self._instants[0].tzinfo) + timedelta(seconds=self._random.randrange(-600, 120))

    def _is_drafted(self, draft: Draft, key: object) -> bool:
        return any(key == drafted for _, drafted, _, _ in draft)
