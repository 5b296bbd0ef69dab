"""Every `weir` command says in a sentence what stands in its way and what to do: no traceback, and never a password."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
import structlog
import typer
from deltalake.exceptions import CommitFailedError
from hypothesis import given
from hypothesis import strategies as st

from cli.main import app, main
from dashboard import backend as dashboard
from deployment.errors import CannotRun
from deployment.positions import describe
from jobs.__main__ import environment, migrate
from jobs.logs import log_as_json, log_for_people
from jobs.runtime.errors import ExitStatus, Refused
from jobs.runtime.unreachable import database_sentence, place

NOBODY = "127.0.0.1:1"
POD = {"WEIR_KAFKA_BOOTSTRAP": NOBODY, "WEIR_POSTGRES_URL": f"postgresql://weir:hidden@{NOBODY}/weir"}
WITHOUT_A_STACK = {"up", "demo", "down", "contracts check", "contracts list"}
"""They start one, find that there is nothing to stop, or need none."""
WITH_KAFKA_FIRST = {"produce", "topics", "drain", "compare", "journal restamp"}
WITH_TABLES_ONLY = {"compact", "conflicts", "dead-letters", "dead-letters redrive", "export usage", "journal"}
ARGUMENTS = {
    "backfill": ["-"],
    "produce": ["-"],
    "catalog apply": ["catalog.yaml"],
    "catalog confirm-price": [
        *("--plan", "p", "--model", "m", "--meter", "requests", "--currency", "EUR"),
        *("--effective-from", "2026-01-01T00:00:00Z"),
    ],
    "catalog delete account": ["a"],
    "catalog delete alias": ["a", "--plan", "p", "--model", "m", "--effective-from", "2026-01-01T00:00:00Z"],
    "catalog delete plan": ["p"],
    "catalog delete price": [
        *("--plan", "p", "--model", "m", "--meter", "requests", "--currency", "EUR"),
        *("--effective-from", "2026-01-01T00:00:00Z"),
    ],
    "close": ["2026-10"],
    "compare": ["truth.json"],
    "dead-letters redrive": ["--reason", "malformed"],
    "explain": ["some-id"],
    "export focus": ["--period", "2026-10", "--to", "out", "--issuer", "Example"],
    "export usage": ["--to", "out"],
    "forget": ["--account", "a", "--user", "u", "--reason", "x"],
    "invoices show": ["weir-1"],
    "invoices void": ["weir-1", "--reason", "x", "--yes"],
    "keys create": ["--scope", "ingest"],
    "keys limit": ["0123456789ab"],
    "keys revoke": ["0123456789ab"],
    "keys rotate": ["0123456789ab"],
    "rebuild": ["billing", "--yes"],
    "view": ["model_health"],
    "consumers remove": ["erp"],
    "watch add": ["errors", "--when", "cached"],
    "watch hits": ["errors"],
    "watch remove": ["errors"],
    "watch try": ["errors"],
    "topics remove": ["events", "--reason", "x"],
    "webhooks add": ["https://example.com/"],
    "webhooks attempts": ["we_0123456789ab", "17"],
    "webhooks change": ["we_0123456789ab", "--note", "x"],
    "webhooks deliveries": ["we_0123456789ab"],
    "webhooks disable": ["we_0123456789ab", "--reason", "x"],
    "webhooks enable": ["we_0123456789ab"],
    "webhooks remove": ["we_0123456789ab"],
    "webhooks resend": ["we_0123456789ab", "--dead"],
    "webhooks rotate": ["we_0123456789ab"],
    "what-if": ["--from", "2026-01-01T00:00:00Z", "--to", "2026-02-01T00:00:00Z", "--into", "what_if"],
    "usage reverse": ["some-id", "--reason", "x", "--account", "a"],
    "stragglers approve": ["1", "--reason", "x"],
    "stragglers reject": ["1", "--reason", "x"],
    "journal": ["--summary"],
    "journal accept-loss": ["events", "0", "--reason", "x", "--yes"],
    "journal restamp": ["0", "1", "2"],
    "journal skip": ["events", "0", "1", "--reason", "x"],
}
Run = Callable[[str], tuple[object, str]]


def leaves(command: Any, *path: str) -> Iterator[str]:
    """The names of the commands that do something by themselves."""
    children = getattr(command, "commands", {})
    if not children or command.invoke_without_command:
        yield " ".join(path)
    for name, child in children.items():
        yield from leaves(child, *path, name)


COMMANDS = set(leaves(typer.main.get_command(app)))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command where nothing is; gives its exit status and what it says on standard error."""
    for name in (*POD, "WEIR_TABLES", "WEIR_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    Path("catalog.yaml").write_text("plans: [{plan: p, name: P}]")
    Path("truth.json").write_text('{"records": [], "outcomes": [], "totals": []}')

    def run(command: str) -> tuple[object, str]:
        monkeypatch.setattr(sys, "argv", ["weir", *command.split(), *ARGUMENTS.get(command, [])])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, capsys.readouterr().err

    return run


@pytest.mark.parametrize("command", sorted(COMMANDS - WITHOUT_A_STACK))
def test_without_an_address_a_command_explains_how_to_start_a_stack(run: Run, command: str) -> None:
    status, said = run(command)
    assert (status, "weir up" in said, "Traceback" in said) == (1, True, False)


@pytest.mark.parametrize("command", sorted(COMMANDS - WITHOUT_A_STACK - WITH_KAFKA_FIRST - WITH_TABLES_ONLY))
def test_a_command_reports_an_unavailable_database_with_address_and_advice(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    for name, value in {**POD, "WEIR_TABLES": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    status, said = run(command)
    assert status == 1
    assert said.startswith(f"The database at {NOBODY}/weir does not answer (Connection refused). ")
    assert "WEIR_POSTGRES_URL" in said
    assert "hidden" not in said


def test_a_command_that_lost_against_another_commit_says_to_run_it_again(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    why = "Failed to commit transaction: Concurrent transaction failed."

    def lost() -> None:
        raise CommitFailedError(why)

    monkeypatch.setattr("cli.main.app", lost)
    said = f"Another program changed the tables at the same moment ({why}). Run the command again.\n"
    assert run("audit") == (1, said)


def test_an_audit_reports_an_unavailable_database_before_it_starts_spark(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**POD, "WEIR_TABLES": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("jobs.runtime.spark.spark_session", lambda *_, **__: pytest.fail("Spark has started"))
    status, said = run("audit")
    assert (status, "does not answer" in said) == (1, True)


@pytest.mark.parametrize("command", sorted(WITH_TABLES_ONLY))
def test_a_command_reports_where_it_found_no_table(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    for name, value in {**POD, "WEIR_TABLES": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    status, said = run(command)
    assert (status, f"below {tmp_path}: " in said) == (0, True)


def test_unavailable_brokers_are_reported_with_the_cause_and_what_to_do() -> None:
    with pytest.raises(CannotRun) as ended:
        describe(NOBODY, ["events"], limit_seconds=1)
    assert re.match(rf"Kafka at {NOBODY} does not answer \(.*Connection refused", str(ended.value))
    assert "WEIR_KAFKA_BOOTSTRAP" in str(ended.value)


def test_a_refusal_of_a_command_ends_with_a_jobs_status(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise Refused("a newer version wrote it")

    monkeypatch.setattr("deployment.stack.running_deployment", refuse)
    assert run("compact") == (ExitStatus.REFUSED, "a newer version wrote it\n")


PARTS = st.text(alphabet="@/:?#%[],; 19", max_size=6)


@given(PARTS, PARTS, st.sampled_from(["weir", ""]))
def test_the_address_of_a_database_is_shown_without_its_password(before: str, after: str, name: str) -> None:
    address = f"postgresql://weir:{before}hidden{after}@db:5432/{name}"
    assert "hidden" not in (place(address) or "") + dashboard.place(address)


@given(st.text(alphabet="@/:?#%[],; 19", min_size=1))
def test_an_encoded_password_is_accepted(password: str) -> None:
    assert place(f"postgresql://weir:{quote(password, safe='')}@db:5432/weir") == "db:5432/weir"


def test_an_invalid_address_is_reported_without_quoting_it() -> None:
    for address in ("postgresql://weir:hid%zzden@db/weir", "postgresql://weir:hid/den@db/weir", "hidden"):
        said = database_sentence(psycopg.OperationalError(f'invalid: "{address}"'), address)
        assert said is not None
        assert said.startswith("WEIR_POSTGRES_URL is no address of a database")
        assert "hid" not in said


def test_a_database_that_refuses_is_not_reported_as_unavailable() -> None:
    refusal = psycopg.OperationalError(
        'connection failed: connection to server at "10.0.0.1", port 5432 failed: FATAL:  no such role "weir"'
    )
    said = database_sentence(refusal, "postgresql://weir:hidden@db/weir")
    assert said is not None
    assert said.startswith('The database at db:5432/weir refuses (FATAL:  no such role "weir"): see that the role, ')


def test_an_error_in_a_statement_is_a_defect_and_not_a_message() -> None:
    assert database_sentence(psycopg.errors.CheckViolation("no"), POD["WEIR_POSTGRES_URL"]) is None


@pytest.mark.parametrize("style", [log_for_people, log_as_json])
def test_a_crash_is_logged_without_the_values_that_may_hold_a_password(
    style: Callable[[], None], capsys: pytest.CaptureFixture[str]
) -> None:
    style()
    try:
        postgres_url = "-".join(["hid", "den"])
        try:
            raise KeyError(len(postgres_url))
        except KeyError:
            structlog.get_logger().exception("crashed")
    finally:
        structlog.reset_defaults()
    said = "".join(capsys.readouterr())
    assert "KeyError: 7" in said
    assert "hid-den" not in said


def test_a_driver_without_addresses_names_each_that_it_needs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in (*POD, "WEIR_TABLES", "WEIR_CHECKPOINTS", "WEIR_JARS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WEIR_POSTGRES_URL", "postgresql://weir:hid/den@db/weir")
    with pytest.raises(SystemExit) as ended:
        environment()
    said = capsys.readouterr().err
    assert ended.value.code == ExitStatus.BAD_CONFIGURATION
    assert [f"{name} is not set" in said for name in ("WEIR_KAFKA_BOOTSTRAP", "WEIR_TABLES")] == [True, True]
    assert "WEIR_POSTGRES_URL is no address of a database" in said
    assert "hid" not in said


@pytest.mark.parametrize(
    ("address", "status", "said"),
    [
        (POD["WEIR_POSTGRES_URL"], ExitStatus.CRASHED, f"The database at {NOBODY}/weir does not answer"),
        ("postgresql://weir:hid/den@db/weir", ExitStatus.BAD_CONFIGURATION, "WEIR_POSTGRES_URL is no address"),
    ],
)
def test_a_migration_without_its_database_is_a_sentence(
    address: str,
    status: ExitStatus,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("WEIR_POSTGRES_URL", address)
    with pytest.raises(SystemExit) as ended:
        migrate()
    assert ended.value.code == status
    assert capsys.readouterr().err.startswith(said)
