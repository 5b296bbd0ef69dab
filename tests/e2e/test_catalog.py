"""`weir catalog apply` returns when joins prices with it: what was applied is what the next event costs."""

from __future__ import annotations

import json
import signal
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import polars as pl
import psycopg
import pytest
from deltalake import DeltaTable

from cli.author import who
from deployment.stack import Stack, running_stack
from jobs.streams import Table
from tests.e2e.metering import drain, frozen, weir


@pytest.fixture
def name() -> str:
    return f"acct-{uuid4().hex[:10]}"


def catalog(name: str, unit_price: str, effective_from: str = "2026-01-01T00:00:00Z") -> dict[str, Any]:
    return {
        "plans": [{"plan": f"plan-{name}", "name": "Plan"}],
        "accounts": [{"account": name, "name": name, "plan": f"plan-{name}", "currency": "USD", "timezone": "UTC"}],
        "prices": [
            {"plan": f"plan-{name}", "model": "m", "meter": "requests", "currency": "USD"}
            | {"unit_price": unit_price, "effective_from": effective_from}
        ],
    }


def apply(stack: Stack, folder: Path, content: Any, *options: str) -> tuple[int, str]:
    """Exit status and what was said."""
    file = folder / f"{uuid4().hex}.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    applied = weir(stack, "catalog", "apply", str(file), "--yes", *options)
    return applied.returncode, applied.stdout + applied.stderr


def use(stack: Stack, folder: Path, account: str) -> None:
    """One request of the account, now."""
    now = datetime.now(UTC).isoformat()
    data = {"request_id": uuid4().hex, "model": "m", "status": "completed", "user_id": "u", "operation": "chat"}
    event = {"specversion": "1.0", "type": "ai.inference.usage.v1", "source": f"test/{account}", "id": uuid4().hex}
    file = folder / f"{uuid4().hex}.jsonl"
    file.write_text(json.dumps({**event, "subject": account, "time": now, "data": data}) + "\n")
    assert weir(stack, "produce", str(file)).returncode == 0
    drain(stack)


def billed(stack: Stack, account: str) -> tuple[Decimal, Decimal]:
    """(amount, unpriced quantity) of all requests."""
    listed = weir(stack, "usage", "--account", account, "--group-by", "meter", "--window", "P1D", "--format", "json")
    rows = json.loads(listed.stdout)
    return (
        sum((Decimal(row["amount"]) for row in rows), Decimal(0)),
        sum((Decimal(row["unpriced_quantity"]) for row in rows), Decimal(0)),
    )


def test_what_was_applied_prices_the_next_event(stack: Stack, tmp_path: Path, name: str) -> None:
    status, said = apply(stack, tmp_path, catalog(name, "0.000000000007"))
    assert status == 0, said
    assert "3 created, 0 changed, 0 as they were; joins has them." in said
    use(stack, tmp_path, name)
    assert billed(stack, name) == (Decimal("0.000000000007"), Decimal(0))
    status, said = apply(stack, tmp_path, catalog(name, "0.5"), "--by", "ann@finance")
    assert status == 0, said
    assert "0 created, 1 changed, 2 as they were" in said
    use(stack, tmp_path, name)
    assert billed(stack, name) == (Decimal("0.500000000007"), Decimal(0))
    line = weir(stack, "explain", "--line", f"{datetime.now(UTC):%Y-%m}", "--account", name, "--format", "json")
    assert [row["changed_by"] for row in json.loads(line.stdout)["prices"]] == [who(), "ann@finance"]


def test_applying_a_file_twice_changes_nothing(stack: Stack, tmp_path: Path, name: str) -> None:
    assert apply(stack, tmp_path, catalog(name, "0.1"))[0] == 0
    status, said = apply(stack, tmp_path, catalog(name, "0.1"))
    assert status == 0, said
    assert "0 created, 0 changed, 3 as they were" in said


def test_an_edit_by_sql_prices_what_comes_after_it(stack: Stack, tmp_path: Path, name: str) -> None:
    assert apply(stack, tmp_path, catalog(name, "0.1"))[0] == 0
    with psycopg.connect(stack.postgres_url, options="-c weir.changed_by=bob@finance") as database:
        edited = "UPDATE catalog.prices SET unit_price = 0.25 WHERE plan = %s RETURNING changed_at"
        [at] = database.execute(edited, [f"plan-{name}"]).fetchone() or [None]
    status, said = apply(stack, tmp_path, catalog(name, "0.25"))
    assert status == 0, said
    assert "0 created, 0 changed, 3 as they were; joins has them." in said
    use(stack, tmp_path, name)
    assert billed(stack, name) == (Decimal("0.25"), Decimal(0))
    versions = pl.DataFrame(DeltaTable(f"{stack.tables}/{Table.PRICES}").to_pyarrow_table())
    authors = versions.filter(plan=f"plan-{name}").sort("lsn").select("changed_by", "changed_at").rows()
    assert [by for by, _ in authors] == [who(), "bob@finance"]
    assert authors[1][1] == at


def test_a_change_made_while_the_connector_is_down_applies_from_its_time(
    stack: Stack, tmp_path: Path, name: str
) -> None:
    assert apply(stack, tmp_path, catalog(name, "0.1"))[0] == 0
    connect = running_stack(stack.data_dir).process("connect").process
    assert connect is not None
    connect.signal(signal.SIGKILL)
    changed = catalog(name, "0.25")
    changed["accounts"][0]["name"] = "Another"
    status, said = apply(stack, tmp_path, changed, "--no-wait")
    assert (status, said.strip()) == (0, "0 created, 2 changed, 1 as they were; joins will have them.")
    status, said = apply(stack, tmp_path, changed, "--timeout", "120")
    assert status == 0, said
    assert "0 created, 0 changed, 3 as they were; joins has them." in said

    with psycopg.connect(stack.postgres_url) as database:
        row = database.execute("SELECT changed_at FROM catalog.accounts WHERE account = %s", [name]).fetchone()
    versions = pl.DataFrame(DeltaTable(f"{stack.tables}/{Table.ACCOUNTS}").to_pyarrow_table())
    begins = versions.filter(account=name).sort("lsn")["effective_from"].to_list()
    assert row is not None
    assert begins[1:] == [row[0]]
    use(stack, tmp_path, name)
    assert billed(stack, name) == (Decimal("0.25"), Decimal(0))


def test_what_was_captured_is_not_deleted_once_more(stack: Stack, tmp_path: Path, name: str) -> None:
    assert apply(stack, tmp_path, catalog(name, "0.1"))[0] == 0
    with psycopg.connect(stack.postgres_url) as database:
        database.execute("DELETE FROM catalog.accounts WHERE account = %s", [name])
        database.execute("DELETE FROM catalog.prices WHERE plan = %s", [f"plan-{name}"])
    reconciled = weir(stack, "catalog", "reconcile")
    assert (reconciled.returncode, reconciled.stdout.strip()) == (
        0,
        "joins has nothing that was deleted.\nAll other rows are equal.",
    )
    versions = pl.DataFrame(DeltaTable(f"{stack.tables}/{Table.ACCOUNTS}").to_pyarrow_table())
    assert versions.filter(account=name).sort("lsn")["deleted"].to_list() == [False, True]


def test_a_price_that_was_deleted_prices_nothing_from_then_on(stack: Stack, tmp_path: Path, name: str) -> None:
    assert apply(stack, tmp_path, catalog(name, "0.1"))[0] == 0
    use(stack, tmp_path, name)
    price = catalog(name, "0.1")["prices"][0]
    key = [word for part in ("plan", "model", "meter", "currency") for word in (f"--{part}", str(price[part]))]
    gone = weir(
        stack, "catalog", "delete", "price", *key, "--effective-from", str(price["effective_from"]), "--by", "ann"
    )
    assert gone.returncode == 0, gone.stderr
    assert "The price is deleted: it ended at" in gone.stdout
    assert gone.stdout.strip().endswith("; joins has it.")
    use(stack, tmp_path, name)
    assert billed(stack, name) == (Decimal("0.1"), Decimal(1))
    versions = pl.DataFrame(DeltaTable(f"{stack.tables}/{Table.PRICES}").to_pyarrow_table()).filter(plan=f"plan-{name}")
    assert versions.sort("lsn").select("deleted", "changed_by").rows() == [(False, who()), (True, "ann")]
    refused = weir(stack, "catalog", "delete", "plan", f"plan-{name}")
    assert refused.returncode == 1
    assert f"1 accounts have it ({name})." in refused.stderr


def test_tags_and_parents_reach_joins_and_bills_roll_up(stack: Stack, tmp_path: Path, name: str) -> None:
    content = catalog(name, "0.25")
    child = {**content["accounts"][0], "account": f"{name}-child", "parent": name, "tags": {"team": "é", "cost": "7"}}
    content["accounts"].insert(0, child)
    status, said = apply(stack, tmp_path, content)
    assert status == 0, said
    assert "4 created" in said
    status, said = apply(stack, tmp_path, content)
    assert status == 0, said
    assert "0 created, 0 changed, 4 as they were; joins has them." in said
    use(stack, tmp_path, f"{name}-child")
    rolled = weir(stack, "usage", "--account", name, "--roll-up", "--window", "P1D", "--format", "json")
    assert [(row["account"], row["amount"]) for row in json.loads(rolled.stdout) if row["meter"] == "requests"] == [
        (name, "0.25")
    ]
    versions = pl.DataFrame(DeltaTable(f"{stack.tables}/{Table.ACCOUNTS}").to_pyarrow_table())
    told = versions.filter(account=f"{name}-child").select("tags", "parent").rows()
    assert told == [('{"cost":"7","team":"é"}', name)]


def test_the_configuration_for_another_kafka_connect_holds_no_password(stack: Stack) -> None:
    told = weir(stack, "catalog", "connector")
    assert told.returncode == 0, told.stderr
    assert json.loads(told.stdout)["config"]["plugin.name"] == "pgoutput"
    password = psycopg.conninfo.conninfo_to_dict(stack.postgres_url)["password"]
    assert str(password) not in told.stdout


def test_a_file_with_one_bad_row_is_refused_whole(stack: Stack, tmp_path: Path, name: str) -> None:
    content = catalog(name, "0.1234567890123")
    status, said = apply(stack, tmp_path, content)
    assert status == 2
    assert "prices.0.unit_price is '0.1234567890123': must have at most 12 decimals" in said
    content = catalog(name, "0.1")
    content["accounts"].append({**content["accounts"][0], "account": f"{name}-2", "plan": "no-such-plan"})
    status, said = apply(stack, tmp_path, content)
    assert status == 1
    assert "accounts.1.plan is 'no-such-plan': must be a plan of the file or of the catalog" in said
    with psycopg.connect(stack.postgres_url) as database:
        assert database.execute("SELECT FROM catalog.accounts WHERE account LIKE %s", [f"{name}%"]).fetchall() == []


def test_a_change_that_joins_does_not_have_in_time_is_reported(stack: Stack, tmp_path: Path, name: str) -> None:
    with frozen(stack, "joins"):
        status, said = apply(stack, tmp_path, catalog(name, "0.1"), "--timeout", "0")
    assert status == 1
    assert "The catalog is stored (3 created, 0 changed, 0 as they were), but joins does not have it yet." in said
    assert "still has" in said
    status, said = apply(stack, tmp_path, catalog(name, "0.1"))
    assert status == 0, said


def test_usage_that_waited_for_a_price_has_it_when_an_audit_of_the_unpriced_returns(
    stack: Stack, tmp_path: Path, name: str
) -> None:
    priced = catalog(name, "0.125")
    assert apply(stack, tmp_path, {**priced, "prices": []})[0] == 0
    use(stack, tmp_path, name)
    assert billed(stack, name) == (Decimal(0), Decimal(1))
    assert apply(stack, tmp_path, priced)[0] == 0
    audited = weir(stack, "audit", "--unpriced")
    assert audited.returncode == 0, audited.stdout + audited.stderr
    assert billed(stack, name) == (Decimal("0.125"), Decimal(0))
