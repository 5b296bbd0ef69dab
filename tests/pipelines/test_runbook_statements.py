"""Each statement of SQL that the runbook gives to somebody at night can be run in a database of this release."""

from __future__ import annotations

import re

import psycopg

from tests.pages import ROOT

SPAN = re.compile(r"`((?:SELECT|TABLE|UPDATE) [^`]+)`")
RUNBOOK = " ".join((ROOT / "monitoring/runbook.md").read_text(encoding="utf-8").split())


def statements() -> list[str]:
    """As they stand there, with something in place of what the reader fills in."""
    found = [statement for statement in SPAN.findall(RUNBOOK) if not statement.endswith(" …")]
    filled = [statement for statement in SPAN.findall(RUNBOOK) if statement.endswith("WHERE …")]
    return [re.sub(r"\bPID\b", "0", text) for text in [*found, *(text.replace("…", "true") for text in filled)]]


def test_each_statement_of_the_runbook_names_what_is_there(database: str) -> None:
    assert len(statements()) > 12
    problems = dict[str, str]()
    with psycopg.connect(database) as connection:
        connection.execute("SET search_path = weir")
        for statement in statements():
            try:
                with connection.transaction():
                    # Planned and not run: some end sessions or drop slots.
                    connection.execute(f"EXPLAIN {statement}".encode())
            except psycopg.Error as error:
                problems[statement] = str(error).partition("\n")[0]
    assert problems == {}
