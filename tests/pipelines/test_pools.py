"""Pools in Postgres: one total for accounts below a parent, from the declaration to keys that see one member alone."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import psycopg
import pytest
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb
from typer.testing import CliRunner

from catalog.closed_months import ClosedMonthsTouched
from catalog.file import CatalogFile, parse_catalog
from catalog.store import store_file
from cli.main import app
from deployment.errors import CannotRun
from jobs.audit.bills.invoices import check_invoices
from jobs.audit.recompute.basis import EVERYTHING, Scope
from jobs.billing_progress import Database
from jobs.close.proof import Proof, unproved
from jobs.close.readiness import Open
from jobs.close.void import void
from jobs.queries.bills import read_meter_amounts, read_month, read_totals
from jobs.replay.bills import refuse_pools
from jobs.runtime.errors import Refused
from jobs.runtime.postgres.address import in_schema
from jobs.runtime.postgres.api_reader import API_READER
from metering.meters import Meter
from metering.plan_terms import PLAN_METER, PLAN_MODEL, PlanTerms
from metering.price_tiers import PriceTerms
from tests.database_rows import write
from tests.job_roles import url_of
from tests.pages import blocks_of
from tests.pipelines.billing import bill as fold
from tests.pipelines.billing import usage_row
from tests.pipelines.closing import NOON, NOVEMBER, OCTOBER, Books, books_of
from tests.pipelines.test_bills_with_tiers import GRADUATED, MONTH, PACKAGE, START, VOLUME, bill, day, rung
from tests.pipelines.test_close import PRICE, TIERED
from tests.rules.test_price_tiers import oracle

BEFORE = START - timedelta(days=90)


def account(name: str, parent: str | None = None, **other: Any) -> dict[str, Any]:
    row = {"account": name, "name": name, "plan": "p", "currency": "EUR", "timezone": "UTC", "parent": parent}
    return row | {"effective_from": BEFORE, **other}


def family(database: str, *children: str) -> None:
    """`top`, and accounts below it."""
    write(database, "catalog.plans", {"plan": "p", "name": "P"}, {"plan": "q", "name": "Q"})
    write(database, "catalog.accounts", account("top"), *(account(name, "top") for name in children))


def pool(*names: str, **other: Any) -> list[dict[str, Any]]:
    return [{"account": name, "parent": "top", "first_month": MONTH, **other} for name in names]


def amounts(rows: Sequence[Mapping[str, Any]]) -> dict[str, Fraction]:
    found: defaultdict[str, Fraction] = defaultdict(Fraction)
    for row in rows:
        found[row["account"]] += Fraction(row["amount"])
    return dict(found)


def of_all_meters(database: Database, accounts: Sequence[str]) -> dict[str, Fraction]:
    """What billing compares limits of money with."""
    spent = read_meter_amounts(database, MONTH, accounts).items()
    return amounts([{"account": account, "amount": amount} for (account, _, meter), amount in spent if not meter])


def test_members_share_the_tiers_of_one_total_by_quantity(database: str) -> None:
    family(database, "a", "b")
    write(database, "catalog.pools", *pool("a", "b"))
    write(database, "price_ladders", rung(1, GRADUATED))
    write(database, "usage_days", day(1, 500, 1), day(1, 1500, 1, account="b"), day(1, 70, 1, account="top"))
    shown = [(row["account"], row["tier"], row["quantity"], row["amount"]) for row in bill(database).lines]
    assert shown == [
        # 1000 of 2000 units at 2, the others at 1 with a flat price of 10: a quarter is of a.
        ("a", "1: up to 1000", 250, 500),
        ("a", "2: up to 5000", 250, Decimal("252.5")),
        ("b", "1: up to 1000", 750, 1500),
        ("b", "2: up to 5000", 750, Decimal("757.5")),
        # It is no member.
        ("top", "1: up to 1000", 70, 140),
    ]
    assert {row["next_unit_price"] for row in bill(database).lines[:4]} == {1}
    assert [row["pooled"] for row in bill(database).lines] == [True, True, True, True, False]


def test_a_pool_is_of_its_months_alone(database: str) -> None:
    family(database, "a", "b")
    write(database, "catalog.pools", *pool("a", "b", first_month=date(2026, 4, 1), end_month=date(2026, 5, 1)))
    write(database, "price_ladders", rung(1, GRADUATED))
    for month in (3, 4, 5):
        for name in "ab":
            write(database, "usage_days", day(1, 1000, 1, account=name, day=date(2026, month, 2)))
    with psycopg.connect(database, row_factory=dict_row) as connection:
        months = [amounts(read_month(connection, date(2026, month, 1)).lines) for month in (3, 4, 5)]
    assert months == [{"a": 2000, "b": 2000}, {"a": 1505, "b": 1505}, {"a": 2000, "b": 2000}]


@pytest.mark.parametrize("seed", range(3))
def test_any_pools_of_any_quantities_cost_what_the_definition_says_and_each_has_its_own(
    database: str, seed: int
) -> None:
    chance = random.Random(seed)
    names = [f"m{number}" for number in range(8)]
    family(database, *names)
    write(database, "catalog.accounts", *(account(f"{name}-below", name) for name in names[:2]))
    everybody = [*names, "m0-below", "m1-below", "top"]
    pooled = chance.sample(everybody, 6)
    write(database, "catalog.pools", *pool(*pooled))
    rungs, days = [], []
    quantities: defaultdict[tuple[str, str], defaultdict[int, Fraction]] = defaultdict(lambda: defaultdict(Fraction))
    ladders: defaultdict[str, list[tuple[datetime, int, Any]]] = defaultdict(list)
    for version in range(1, 40):
        plan = f"p{version % 12}"
        terms: Any = chance.choice([GRADUATED, VOLUME, PACKAGE, "0.25"])
        since = START + timedelta(days=chance.randint(0, 3))
        rungs.append(rung(version, terms, plan=plan, effective_from=since))
        ladders[plan].append((since, version, terms))
        for name in chance.sample(everybody, chance.randint(0, len(everybody))):
            quantity = Decimal(chance.randint(1, 3000)) + Decimal(chance.randint(0, 10**6)).scaleb(-6)
            quantity *= chance.choice([1, 1, 1, -1])
            quantities[plan, name][version] += Fraction(quantity)
            more = {"unit_price": terms} if isinstance(terms, str) else {}
            days.append(day(chance.randint(1, 31), f"{quantity}", version, account=name, **more))
    write(database, "price_ladders", *rungs)
    write(database, "usage_days", *chance.sample(days, len(days)))
    lines = bill(database).lines
    expected: dict[str, Fraction] = defaultdict(Fraction)
    for plan, ladder in ladders.items():
        groups = [pooled, *([name] for name in everybody if name not in pooled)]
        for group in groups:
            expected[group[0]] += cost(ladder, [quantities[plan, name] for name in group])
    found = amounts(lines)
    for name in everybody:
        if name not in pooled:
            assert found.get(name, 0) == expected[name]
    assert sum(found.get(name, Fraction(0)) for name in pooled) == expected[pooled[0]]
    used: defaultdict[tuple[str, int], Fraction] = defaultdict(Fraction)
    for row in days:
        used[row["account"], row["price_version"]] += Fraction(row["quantity"])
    billed: defaultdict[tuple[str, int], Fraction] = defaultdict(Fraction)
    for line in lines:
        billed[line["account"], line["price_version"]] += Fraction(line["quantity"])
    assert {key: value for key, value in billed.items() if value} == {
        key: value for key, value in used.items() if value
    }
    with psycopg.connect(database, row_factory=dict_row) as connection:
        totals = amounts(read_totals(connection, MONTH, everybody))
        assert totals == found == of_all_meters(connection, everybody)
        for name in chance.sample(everybody, 4):
            # Who asks for one account has what who asks for all has.
            assert [line for line in lines if line["account"] == name] == list(
                read_month(connection, MONTH, [name]).lines
            )


def cost(ladder: Sequence[tuple[datetime, int, Any]], members: Sequence[Mapping[int, Fraction]]) -> Fraction:
    """What the pool pays: of each version what is above 0 comes first, then what is below."""
    total = sum((sum(used.values(), Fraction(0)) for used in members), Fraction(0))
    there = [of for of in sorted(ladder, key=lambda of: of[:2]) if any(used.get(of[1]) for used in members)]
    costs = start = Fraction(0)
    for _, version, terms in there:
        found = [used.get(version, Fraction(0)) for used in members]
        up, down = sum(max(each, Fraction(0)) for each in found), sum(min(each, Fraction(0)) for each in found)
        is_last = version == there[-1][1]
        for part, has_flat in ((up, is_last), (down, is_last and not up)):
            if part and isinstance(terms, str):
                costs += part * Fraction(terms)
            elif part:
                costs += oracle(terms, start, start + part, total, has_flat)
            start += part
    return costs


def test_a_key_that_sees_one_member_has_its_share_and_no_usage_of_the_others(database: str) -> None:
    family(database, "a", "b")
    write(database, "catalog.pools", *pool("a", "b"))
    write(database, "price_ladders", rung(1, GRADUATED))
    write(database, "usage_days", day(1, 500, 1), day(1, 1500, 1, account="b"))
    whole = [row for row in bill(database).lines if row["account"] == "a"]
    with psycopg.connect(in_schema(database), row_factory=dict_row) as session:
        session.execute(f"SET ROLE {API_READER}")
        session.execute("SELECT set_config('weir.accounts', %s, true)", [json.dumps(["a"])])
        for accounts in (["a"], ["a", "b"], None):
            assert list(read_month(session, MONTH, accounts).lines) == whole
        assert [row["amount"] for row in read_totals(session, MONTH, ["a", "b"])] == [Decimal("752.5")]
        parts = session.execute("SELECT account FROM pool_parts(%s, NULL)", [MONTH]).fetchall()
        assert parts == [{"account": "a"}]
        assert session.execute("SELECT account FROM catalog.pools").fetchall() == [{"account": "a"}]
        session.execute("SELECT set_config('weir.accounts', '[]', true)")
        assert list(read_month(session, MONTH).lines) == []


def test_a_login_that_is_bound_to_one_member_sees_no_part_of_another_whatever_it_sets(database: str) -> None:
    family(database, "a", "b")
    write(database, "catalog.pools", *pool("a", "b"))
    write(database, "price_ladders", rung(1, GRADUATED))
    write(database, "usage_days", day(1, 500, 1), day(1, 1500, 1, account="b"))
    for is_bound, parts in ((False, {"": "ab", "*": "ab", '["b"]': "b"}), (True, {"": "", "*": "a", '["b"]': ""})):
        with psycopg.connect(in_schema(database)) as session:
            if is_bound:
                session.execute("INSERT INTO reader_logins VALUES (session_user, '[\"a\"]')")
            session.execute(f"SET ROLE {API_READER}")
            for setting, accounts in parts.items():
                session.execute("SELECT set_config('weir.accounts', %s, true)", [setting])
                found = session.execute("SELECT account FROM pool_parts(%s, NULL) ORDER BY 1", [MONTH]).fetchall()
                assert "".join(account for (account,) in found) == accounts
            session.rollback()


def test_billings_own_role_adds_up_all_of_a_pool(database: str) -> None:
    family(database, "a", "b")
    write(database, "catalog.pools", *pool("a", "b"))
    write(database, "price_ladders", rung(1, GRADUATED))
    write(database, "usage_days", day(1, 500, 1), day(1, 1500, 1, account="b"))
    with psycopg.connect(url_of(database, "weir_billing"), row_factory=dict_row) as session:
        assert of_all_meters(session, ["a", "b"]) == {"a": Fraction("752.5"), "b": Fraction("2257.5")}


def test_who_may_not_read_usage_reads_none_of_a_pools(database: str) -> None:
    family(database, "a", "b")
    write(database, "catalog.pools", *pool("a", "b"))
    with psycopg.connect(in_schema(database)) as session:
        session.execute("CREATE ROLE outsider")
        session.execute("GRANT USAGE ON SCHEMA weir TO outsider")
        session.execute("SET ROLE outsider")
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="permission denied for function pool_parts"):
            session.execute("SELECT FROM pool_parts(%s, NULL)", [MONTH])
        session.rollback()


def refused(database: str, sentence: str, statement: str) -> None:
    with pytest.raises(psycopg.errors.IntegrityConstraintViolation, match=sentence):
        edit(database, statement)


def edit(database: str, statement: str) -> None:
    with psycopg.connect(database) as at:
        at.execute(statement)


def test_what_a_pool_cannot_be_is_refused_with_a_sentence(database: str) -> None:
    family(database, "a", "b")
    write(database, "catalog.accounts", account("other"), account("yen", "top", currency="JPY"))
    write(database, "catalog.accounts", account("far", "top", timezone="Asia/Tokyo"), account("q", "top", plan="q"))
    into = "INSERT INTO catalog.pools (account, parent, first_month) VALUES ('a', 'top', '2026-03-01'), "
    for name, has in (("yen", "p JPY UTC"), ("far", "p EUR Asia/Tokyo"), ("q", "q EUR UTC")):
        refused(
            database,
            f"a and {name} pool below top: must have one plan.*{has}",
            f"{into}('{name}', 'top', '2026-03-01')",
        )
    refused(database, "other pools below top: must be top, or below it", f"{into}('other', 'top', '2026-03-01')")
    refused(database, "nobody is not there in all", f"{into}('nobody', 'top', '2026-03-01')")
    refused(database, "a is in two pools in one month, from 2026-04-01", f"{into}('a', 'top', '2026-04-01')")
    write(database, "catalog.pools", *pool("a", "b", "top"))
    for change in (
        "UPDATE catalog.accounts SET plan = 'q', effective_from = '2026-04-01Z' WHERE account = 'a'",
        "UPDATE catalog.accounts SET timezone = 'Asia/Tokyo', effective_from = now() WHERE account = 'a'",
    ):
        refused(database, "a has more than one plan, currency or time zone while it pools", change)
    moved = "UPDATE catalog.accounts SET parent = 'other', effective_from = '2026-04-10Z' WHERE account = 'b'"
    refused(database, "b pools below top", moved)
    refused(database, "a is not there in all of the time", "DELETE FROM catalog.accounts WHERE account = 'a'")
    included = PlanTerms(included={"requests": Decimal(10)})
    priced = {
        "plan": "p",
        "model": PLAN_MODEL,
        "meter": PLAN_METER,
        "currency": "EUR",
        "terms": Jsonb(included.document),
    }
    with pytest.raises(psycopg.errors.IntegrityConstraintViolation, match="pools, and its plan p includes units"):
        write(database, "catalog.prices", priced | {"effective_from": START + timedelta(days=90)})
    write(database, "catalog.prices", priced | {"currency": "JPY", "effective_from": START + timedelta(days=90)})


def test_a_plan_that_included_units_may_pool_once_other_terms_hold(database: str) -> None:
    family(database, "a", "b")
    terms = [PlanTerms(included={"requests": Decimal(10)}), PlanTerms(flat_fee=Decimal(1))]
    key = {"plan": "p", "model": PLAN_MODEL, "meter": PLAN_METER, "currency": "EUR"}
    for since, held in zip((BEFORE, START), terms, strict=True):
        write(database, "catalog.prices", key | {"effective_from": since, "terms": Jsonb(held.document)})
    before = pool("a", first_month=date(2026, 2, 1))
    with pytest.raises(psycopg.errors.IntegrityConstraintViolation, match="a pools, and its plan p includes units"):
        write(database, "catalog.pools", *before)
    write(database, "catalog.pools", *pool("a", "b"))


def test_a_pool_ends_with_a_month_and_all_of_it_may_change_together(database: str) -> None:
    family(database, "a", "b")
    write(database, "catalog.pools", *pool("a", "b"))
    with psycopg.connect(database) as at:
        at.execute("UPDATE catalog.pools SET end_month = '2026-04-01'")
        at.execute("UPDATE catalog.accounts SET plan = 'q', effective_from = '2026-04-01Z' WHERE parent = 'top'")
        at.execute(
            "INSERT INTO catalog.pools (account, parent, first_month)"
            " SELECT account, parent, '2026-04-01' FROM catalog.accounts WHERE parent = 'top'"
        )
    with psycopg.connect(database) as at:
        at.execute("UPDATE catalog.pools SET end_month = '2026-05-01' WHERE first_month = '2026-04-01'")
        at.execute("DELETE FROM catalog.accounts WHERE account = 'a'")
        found = at.execute("SELECT count(*) FROM activity_log WHERE document::jsonb ->> 'target' = 'catalog.pools'")
        assert found.fetchall() == [(6,)]


def test_a_transaction_checks_a_pool_once_and_again_after_what_it_changes_later(database: str) -> None:
    family(database, "a", "b", "c")
    write(database, "catalog.accounts", account("other"))
    with psycopg.connect(database) as at:
        at.execute("SET track_functions = 'all'")
        at.execute(
            "INSERT INTO catalog.pools (account, parent, first_month) VALUES "
            + ", ".join(f"('{name}', 'top', '2026-03-01')" for name in ("a", "b", "c", "top"))
        )
        at.execute("UPDATE catalog.accounts SET name = 'another'")
        at.execute("SET CONSTRAINTS ALL IMMEDIATE")
        checks = at.execute("SELECT calls FROM pg_stat_xact_user_functions WHERE funcname = 'wrong_pool'")
        assert checks.fetchall() == [(1,)]
        at.execute("SET CONSTRAINTS ALL DEFERRED")
        at.execute("UPDATE catalog.accounts SET parent = 'other', effective_from = '2026-04-10Z' WHERE account = 'b'")
        with pytest.raises(psycopg.errors.IntegrityConstraintViolation, match="b pools below top"):
            at.commit()


def file(**pool: Any) -> CatalogFile:
    return parse_catalog(json.dumps({"pools": [{"parent": "top", "accounts": ["a", "b"], **pool}]}))


def test_a_file_declares_pools_and_asks_before_an_ended_month_is_billed_again(database: str) -> None:
    family(database, "a", "b")
    write(database, "price_ladders", rung(1, GRADUATED))
    # b has used nothing, and the month has ended.
    write(database, "usage_days", day(1, 500, 1))
    with pytest.raises(ClosedMonthsTouched, match=r"a 2026-03 .*add --backdate"):
        store_file(database, file(first_month="2026-02"))
    later = store_file(database, file(first_month="2026-04"))
    assert (later.changes, later.pools) == ([], {"c": 2, "r": 0})
    assert store_file(database, file(first_month="2026-04")).pools == {"r": 2}
    assert store_file(database, file(first_month="2026-04", end_month="2026-06")).pools == {"u": 2, "r": 0}
    backdated = file(first_month="2026-02", end_month="2026-04")
    assert store_file(database, backdated, backdates=True).pools == {"c": 2, "r": 0}
    with pytest.raises(ClosedMonthsTouched, match="a 2026-03"):
        store_file(database, file(first_month="2026-02", end_month="2026-03"))
    with pytest.raises(CannotRun, match=r"pools\.0\.accounts is 'who'"):
        store_file(database, file(first_month="2026-07", accounts=["who"]))
    with pytest.raises(CannotRun, match=r"refused the catalog: a is in two pools in one month, from 2026-05-01"):
        store_file(database, file(first_month="2026-05"))


def test_what_the_guide_shows_of_pools_is_applied_one_after_the_other(database: str) -> None:
    begun, changed = (block.text for block in blocks_of("yaml") if "\npools:\n" in block.text)
    assert store_file(database, parse_catalog(begun)).pools == {"c": 2, "r": 0}
    assert store_file(database, parse_catalog(changed)).pools == {"u": 2, "c": 2, "r": 0}


def test_the_members_of_pools_are_listed_with_their_months(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    family(database, "a", "b", "c", "d")
    months = {"first_month": date(2026, 1, 1), "end_month": date(2026, 2, 1)}
    never = {"first_month": date(2026, 5, 1), "end_month": date(2026, 5, 1)}
    write(database, "catalog.pools", *pool("a", "b"), *pool("c", **months), *pool("top", **never))
    monkeypatch.setattr("deployment.stack.running_deployment", lambda _: SimpleNamespace(postgres_url=database))

    def listed(*arguments: str) -> list[tuple[Any, ...]]:
        found = CliRunner().invoke(app, ["pools", "list", *arguments, "--format", "json"])
        assert found.exit_code == 0, found.output
        names = ("parent", "account", "first_month", "end_month")
        return [tuple(row[name] for name in names) for row in json.loads(found.stdout)]

    every = [
        ("top", "c", "2026-01", "2026-02"),
        ("top", "a", "2026-03", None),
        ("top", "b", "2026-03", None),
    ]
    assert listed() == listed("--account", "a") == listed("--account", "top") == every
    assert listed("--account", "elsewhere") == []
    # Nor do the pools of others belong to an account whose own never was.
    write(database, "catalog.pools", *pool("d", **never))
    assert listed("--account", "d") == []


def test_pools_are_not_emptied_by_a_truncate(database: str) -> None:
    sentence = "truncate of pools is refused"
    with psycopg.connect(database) as at, pytest.raises(psycopg.errors.RaiseException, match=sentence):
        at.execute("TRUNCATE catalog.pools")


@pytest.fixture
def books(database: str) -> Iterator[Books]:
    yield from books_of(database)


def open_pool(books: Books, **end: Any) -> None:
    """`acme` and `dev` below it pool from October on, for a graduated price."""
    open_accounts(books)
    members = [{"account": name, "parent": "acme", "first_month": OCTOBER, **end} for name in ("acme", "dev")]
    write(books.database, "catalog.pools", *members)


def open_accounts(books: Books) -> None:
    books.open()
    books.open("dev")
    with books.connection.transaction():
        books.connection.execute(
            "UPDATE catalog.accounts SET parent = 'acme', effective_from = '2026-01-01Z' WHERE account = 'dev'"
        )
    price = {"price_version": 7, "plan": "pro", "model": "claude", "meter": "input_tokens", "currency": "EUR"}
    write(books.database, "price_ladders", price | {"effective_from": START, "terms": PriceTerms.of(GRADUATED).text})


def use(books: Books, quantity: int, account: str, at: datetime = NOON, **other: Any) -> None:
    books.use(quantity, at, account=account, **TIERED, **other)


def test_usage_of_one_member_corrects_the_invoice_of_the_other(books: Books) -> None:
    open_pool(books)
    use(books, 500, "acme")
    use(books, 500, "dev")
    books.end(OCTOBER)
    assert {(row["account"], row["total"]) for row in books.close()} == {("acme", 1000), ("dev", 1000)}
    use(books, 1000, "dev")
    books.end(NOVEMBER)
    # Of 2000 units 1000 are of the second tier, of which acme has a quarter: 500 + 250 + 2.5.
    found = {row["account"]: row["total"] for row in books.close(NOVEMBER)}
    assert found == {"acme": Decimal("-247.50"), "dev": Decimal("1257.50")}
    assert books.faults() == []
    assert [check.holds for check in check_invoices(books.database)] == [True, True]


def test_all_of_a_pool_are_closed_together_or_nobody(books: Books) -> None:
    open_pool(books)
    use(books, 500, "acme")
    books.use(7, price=None, account="dev")
    books.end(OCTOBER)
    (row,) = books.close(accounts=["acme"])
    assert (row["outcome"], row["reason"]) == (
        "refused",
        "it pools with dev: close all of them together, as a share is of what all have used",
    )
    rows = books.close()
    assert {row["account"]: row["reason"] for row in rows if row["outcome"] == "refused"} == {
        "acme": "2026-10: it pools with dev, which cannot be closed",
        "dev": "2026-10: usage has no price: sonnet input_tokens; add prices, then run `weir audit` "
        "(or --allow unpriced)",
    }
    assert books.rows("SELECT FROM invoices") == []
    assert {row["outcome"] for row in books.leave_open(OCTOBER, Open.UNPRICED)} == {"issued"}


def test_an_earlier_month_of_a_pool_that_has_ended_is_not_parted_either(books: Books) -> None:
    open_pool(books, end_month=NOVEMBER)
    for name in ("acme", "dev"):
        use(books, 500, name, at=NOON - timedelta(days=30))
    books.end(date(2026, 9, 1))
    assert {row["outcome"] for row in books.close(date(2026, 9, 1))} == {"issued"}
    use(books, 500, "acme")
    books.use(7, price=None, account="dev")
    books.end(NOVEMBER)
    reasons = {row["account"]: row["reason"] for row in books.close(NOVEMBER) if row["outcome"] == "refused"}
    assert reasons["acme"] == "2026-10: it pools with dev, which cannot be closed"
    assert books.rows("SELECT FROM invoices WHERE period > '2026-09-01'") == []


def test_late_usage_of_who_pooled_earlier_parts_no_pool_of_the_month(books: Books) -> None:
    open_pool(books, end_month=NOVEMBER)
    books.open("web")
    with books.connection.transaction():
        books.connection.execute(
            "UPDATE catalog.accounts SET parent = 'acme', effective_from = '2026-01-01Z' WHERE account = 'web'"
        )
    now = [{"account": name, "parent": "acme", "first_month": NOVEMBER} for name in ("dev", "web")]
    write(books.database, "catalog.pools", *now)
    for name in ("acme", "dev"):
        use(books, 500, name)
    books.end(OCTOBER)
    books.close()
    for name in ("dev", "web"):
        use(books, 1000, name, NOON + timedelta(days=31))
    books.end(NOVEMBER)
    books.audit(EVERYTHING)
    use(books, 1000, "acme")
    found = {row["account"]: (row["outcome"], row["total"]) for row in books.close(NOVEMBER)}
    # Each month has 2000 units: 2000 + 1000 + 10. Of October acme has three quarters; 1000 each were invoiced.
    assert found == {
        "acme": ("issued", Decimal("1257.50")),
        "dev": ("issued", Decimal("1505.00") - Decimal("247.50")),
        "web": ("issued", Decimal("1505.00")),
    }
    assert books.faults() == []


def test_a_pool_that_is_declared_while_a_month_is_closed_is_not_parted(books: Books) -> None:
    open_accounts(books)
    use(books, 500, "acme")
    use(books, 1500, "dev")
    books.end(OCTOBER)

    def declares(_: Scope) -> bool:
        members = [{"account": name, "parent": "acme", "first_month": OCTOBER} for name in ("acme", "dev")]
        write(books.database, "catalog.pools", *members)
        return True

    books.audit_finds = declares
    (row,) = books.close(accounts=["acme"])
    assert (row["outcome"], row["reason"]) == (
        "refused",
        "it pools with dev: close all of them together, as a share is of what all have used",
    )


def test_a_member_that_has_used_nothing_keeps_nobody_from_being_closed(books: Books) -> None:
    open_pool(books)
    use(books, 500, "acme")
    books.end(OCTOBER)
    assert [row["outcome"] for row in books.close(accounts=["acme"])] == ["issued"]


def test_an_invoice_is_issued_again_with_the_first_one_of_a_member_that_used_later(books: Books) -> None:
    open_pool(books)
    use(books, 500, "acme")
    books.end(OCTOBER)
    books.close()
    use(books, 1500, "dev")
    void(books.database, "weir-1", made_by="ann", reason="wrong address", at=NOON + timedelta(days=40))
    (row,) = books.close(accounts=["acme"], reissues=True, reason="the right address")
    assert (row["outcome"], row["reason"]) == (
        "refused",
        "it pools with dev: close all of them together, as a share is of what all have used",
    )
    rows = books.close(accounts=["acme", "dev"], reissues=True, reason="the right address")
    assert {(row["account"], row["total"]) for row in rows} == {
        ("acme", Decimal("752.50")),
        ("dev", Decimal("2257.50")),
    }
    assert books.faults() == []
    assert [check.holds for check in check_invoices(books.database)] == [True, True]


def test_a_member_whose_usage_was_taken_back_keeps_no_invoice_from_being_issued_again(books: Books) -> None:
    open_pool(books)
    use(books, 500, "acme")
    use(books, 500, "dev")
    use(books, -500, "dev")
    books.end(OCTOBER)
    assert [row["account"] for row in books.close()] == ["acme"]
    void(books.database, "weir-1", made_by="ann", reason="wrong address", at=NOON + timedelta(days=40))
    (row,) = books.close(accounts=["acme"], reissues=True, reason="the right address")
    assert (row["outcome"], row["total"]) == ("issued", 1000)


def test_usage_of_one_member_after_the_audit_has_both_audited_again(books: Books) -> None:
    open_pool(books)
    books.open("alone")
    use(books, 500, "acme")
    use(books, 500, "dev")
    use(books, 500, "alone")
    books.end(OCTOBER)
    (audited,) = books.rows("SELECT next_position FROM positions")
    proof = Proof(1, audited["next_position"], 1_000_000)
    use(books, 1000, "dev")
    with psycopg.connect(books.database, row_factory=dict_row) as reader:
        assert unproved(reader, proof, ["acme", "dev", "alone"], NOVEMBER) == {"acme", "dev"}
        assert unproved(reader, proof, ["acme"], NOVEMBER) == {"acme"}
        assert unproved(reader, proof, ["alone"], NOVEMBER) == set()


def test_a_pool_of_a_month_that_is_on_an_invoice_does_not_change(books: Books) -> None:
    open_pool(books)
    use(books, 500, "acme")
    books.end(OCTOBER)
    books.close()
    sentence = "acme has invoices of 2026-10: a pool begins, ends or changes with a month of which no member has one"
    for change in (
        "UPDATE catalog.pools SET end_month = '2026-10-01'",
        "DELETE FROM catalog.pools WHERE account = 'dev'",
        "INSERT INTO catalog.pools (account, parent, first_month) VALUES ('new', 'acme', '2026-10-01')",
    ):
        refused(books.database, sentence, change)
    books.connection.execute("UPDATE catalog.pools SET end_month = '2026-11-01'")
    books.connection.commit()


def test_a_limit_of_money_is_decided_again_when_another_member_uses_or_joins(
    connection: psycopg.Connection[Any], database: str
) -> None:
    family(database, "a", "b")
    write(database, "price_ladders", rung(7, GRADUATED, model="claude", meter="input_tokens"))
    money = {
        "account": "a",
        "currency": "EUR",
        "period": "P1M",
        "amount": "900.00",
        "effective_from": BEFORE.isoformat(),
    }
    store_file(database, parse_catalog(json.dumps({"limits": [money]})))
    at: dict[str, Any] = {
        "price": PRICE,
        "input_tokens_unit_price": None,
        "input_tokens_amount": None,
        "day": date(2026, 3, 5),
    }

    def used(lsn: int, quantity: int, account: str) -> None:
        quantities = {Meter.INPUT_TOKENS: Decimal(quantity)}
        fold(connection, [usage_row(lsn, START + timedelta(days=4), account=account, quantities=quantities, **at)])

    def crossed() -> list[tuple[Any, ...]]:
        with connection.transaction():
            found = connection.execute("SELECT account, is_crossed, used FROM threshold_changes ORDER BY version")
            return found.fetchall()

    used(1, 500, "a")
    assert crossed() == [("a", True, 1000)]
    used(2, 1500, "b")
    assert crossed() == [("a", True, 1000)], "each has its own total"
    write(database, "catalog.pools", *pool("a", "b"))
    fold(connection, [])
    assert crossed() == [("a", True, 1000), ("a", False, Decimal("752.5"))]
    used(3, -1500, "b")
    assert crossed()[2:] == [("a", True, 1000)]


def test_limits_of_all_members_are_due_once_for_each_statement_about_their_pool(database: str) -> None:
    family(database, "a", "b", "c")
    limit = {"plan": "p", "currency": "EUR", "period": "P1M", "amount": "9", "effective_from": BEFORE.isoformat()}
    store_file(database, parse_catalog(json.dumps({"limits": [limit]})))

    def due(statement: str) -> list[str]:
        with psycopg.connect(database) as at:
            at.execute("DELETE FROM thresholds_due")
            at.execute(statement)
            return [account for (account,) in at.execute("SELECT account FROM thresholds_due ORDER BY 1").fetchall()]

    declared = ", ".join(f"('{name}', 'top', '2026-03-01')" for name in "abc")
    assert due(f"INSERT INTO catalog.pools (account, parent, first_month) VALUES {declared}") == ["a", "b", "c"]
    assert set(due("UPDATE catalog.pools SET end_month = '2026-06-01' WHERE account = 'a'")) == {"a", "b", "c"}
    assert due("DELETE FROM catalog.pools WHERE account = 'c'") == ["a", "b", "c"]


def test_a_replay_refuses_a_time_in_which_accounts_pool(database: str) -> None:
    family(database, "a", "b")
    write(database, "catalog.pools", *pool("a", "b", end_month=date(2026, 5, 1)))
    with psycopg.connect(database) as at:
        for first, last in ((date(2026, 1, 1), date(2026, 2, 27)), (date(2026, 5, 1), date(2026, 9, 1))):
            refuse_pools(at, *(datetime(day.year, day.month, day.day, tzinfo=UTC) for day in (first, last)))
        with pytest.raises(
            Refused, match=r"accounts pool below top in 2026-04: .* compare a time before the pool begins"
        ):
            refuse_pools(at, START + timedelta(days=40), START + timedelta(days=100))


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Pacific/Auckland"])
def test_a_replay_takes_the_time_up_to_a_pool_and_from_its_end_on_by_the_accounts_calendar(
    database: str, zone: str
) -> None:
    write(database, "catalog.plans", {"plan": "p", "name": "P"})
    write(database, "catalog.accounts", account("top", timezone=zone), account("a", "top", timezone=zone))
    write(database, "catalog.pools", *pool("top", "a", end_month=date(2026, 5, 1)))
    begins, ends = (datetime(2026, month, 1, tzinfo=ZoneInfo(zone)) for month in (3, 5))
    one = timedelta(minutes=1)
    with psycopg.connect(database) as at:
        refuse_pools(at, begins - timedelta(days=28), begins)
        refuse_pools(at, ends, ends + timedelta(days=31))
        for start, end, month in ((begins - one, begins + one, "2026-03"), (ends - one, ends + one, "2026-04")):
            with pytest.raises(Refused, match=f"accounts pool below top in {month}"):
                refuse_pools(at, start, end)
