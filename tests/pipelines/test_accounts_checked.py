"""What no account can be, whoever edits it, and in whatever way: the database says why, and nothing is changed."""

from __future__ import annotations

import json
from threading import Thread
from time import monotonic
from typing import Any

import psycopg
import pytest
from alembic import command

from catalog.deletion import delete_row
from catalog.file import CatalogFileError, parse_catalog
from catalog.store import store
from deployment.capture import read_capture
from deployment.errors import CannotRun
from jobs.journal.catalog_problems import CAPTURED_COLUMNS, GROWN_COLUMNS
from jobs.runtime.postgres.schema import migrate, migrator
from jobs.streams import CatalogTopic

_INSERT = "INSERT INTO catalog.accounts (account, name, plan, currency) VALUES (%s, 'A', 'p', 'EUR')"
_INSERT_ZONE = "INSERT INTO catalog.accounts (account, name, plan, currency, timezone) VALUES (%s, 'A', 'p', 'EUR', %s)"
TOO_DEEP = "more than 8 accounts would stand above each other"


@pytest.fixture
def accounts(database: str) -> str:
    """The address of a database with accounts a to k."""
    with psycopg.connect(database) as connection:
        connection.execute("INSERT INTO catalog.plans VALUES ('p', 'P')")
        connection.cursor().executemany(_INSERT, [[name] for name in "abcdefghijk"])
    return database


def edit(database: str, column: str, value: Any, account: str = "a") -> None:
    with psycopg.connect(database) as connection:
        connection.execute(f"UPDATE catalog.accounts SET {column} = %s WHERE account = %s".encode(), [value, account])


def refused(database: str, column: str, value: Any, account: str = "a") -> str:
    with pytest.raises((psycopg.errors.CheckViolation, psycopg.errors.ForeignKeyViolation)) as problem:
        edit(database, column, value, account)
    return str(problem.value)


@pytest.mark.parametrize("zone", ["Mars/Olympus", "UTC+3", "CET-1CEST", "europe/berlin", "posix/UTC", "localtime", ""])
def test_an_unknown_time_zone_is_refused_at_the_edit(accounts: str, zone: str) -> None:
    """Else its months would be those of UTC, and nobody would see it."""
    assert "is no time zone of the IANA database, such as Europe/Berlin" in refused(accounts, "timezone", zone)


def test_existing_time_zones_are_taken_and_an_earlier_one_stays(accounts: str) -> None:
    for zone in ("Europe/Berlin", "America/Argentina/Buenos_Aires", "Etc/GMT+3", "UTC"):
        edit(accounts, "timezone", zone)
    with psycopg.connect(accounts) as connection:
        connection.execute("ALTER TABLE catalog.accounts DISABLE TRIGGER check_account")
        connection.execute("UPDATE catalog.accounts SET timezone = 'Mars/Olympus' WHERE account = 'b'")
        connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
        connection.execute("ALTER TABLE catalog.accounts ENABLE TRIGGER check_account")
    edit(accounts, "name", "another", "b")
    edit(accounts, "timezone", "Mars/Olympus", "b")
    with psycopg.connect(accounts) as connection:
        again = "ON CONFLICT (account) DO UPDATE SET timezone = excluded.timezone, name = 'again'"
        connection.execute(f"{_INSERT_ZONE} {again}".encode(), ["b", "Mars/Olympus"])
    assert "is no time zone" in refused(accounts, "timezone", "Mars/Olympus", "c")


@pytest.mark.long
def test_ten_thousand_accounts_of_a_few_zones_are_stored_in_seconds(accounts: str) -> None:
    """Each zone is looked for once in a transaction: to look takes milliseconds, and reads every file of zones."""
    zones = ["Europe/Berlin", "Asia/Kolkata", "America/New_York"]
    begun = monotonic()
    with psycopg.connect(accounts) as connection:
        rows = [(f"many-{number}", zones[number % 3]) for number in range(10_000)]
        connection.cursor().executemany(_INSERT_ZONE, rows)
    assert monotonic() - begun < 120
    assert "is no time zone" in refused(accounts, "timezone", "Europe/Berlin Asia/Kolkata")


@pytest.mark.parametrize(
    ("tags", "said"),
    [
        (["x"], "must be a JSON object of texts"),
        ({"team": 7}, "must be a text"),
        ({"team": None}, "must be a text"),
        ({"": "x"}, "must have a name of 1 to 64 bytes"),
        ({"n" * 65: "x"}, "must have a name of 1 to 64 bytes"),
        ({"team": "é" * 128 + "x"}, "must be a text of at most 256 bytes"),
        ({f"t{number}": "" for number in range(51)}, "must be at most 50"),
    ],
)
def test_tags_that_are_no_short_texts_are_refused(accounts: str, tags: Any, said: str) -> None:
    assert said in refused(accounts, "tags", json.dumps(tags))
    if isinstance(tags, dict) and all(isinstance(value, str) for value in tags.values()):
        with pytest.raises(CatalogFileError, match="tags"):
            parse_catalog(json.dumps({"accounts": [FILED | {"tags": tags}]}))


def test_tags_at_their_limits_are_taken(accounts: str) -> None:
    tags = {f"{number:064}": "é" * 128 for number in range(50)}
    edit(accounts, "tags", json.dumps(tags))
    with psycopg.connect(accounts) as connection:
        assert connection.execute("SELECT tags FROM catalog.accounts WHERE account = 'a'").fetchone() == (tags,)


def test_an_account_cannot_be_its_own_ancestor(accounts: str) -> None:
    assert "it stands above itself (a < a)" in refused(accounts, "parent", "a")
    edit(accounts, "parent", "b")
    edit(accounts, "parent", "c", "b")
    assert "account 'c' cannot have the parent 'a': it stands above itself (c < a < b < c)" in refused(
        accounts, "parent", "a", "c"
    )
    assert "accounts_parent_fkey" in refused(accounts, "parent", "nobody", "d")


def test_two_who_make_a_circle_together_do_not(accounts: str) -> None:
    """Each alone would be fine: one of them waits for the other, or is ended."""
    problems: list[Exception] = []

    def later() -> None:
        try:
            edit(accounts, "parent", "a", "b")
        except psycopg.Error as problem:
            problems.append(problem)

    with psycopg.connect(accounts) as first:
        first.execute("UPDATE catalog.accounts SET parent = 'b' WHERE account = 'a'")
        first.execute("SET CONSTRAINTS ALL IMMEDIATE")
        second = Thread(target=later)
        second.start()
        second.join(1)
        assert second.is_alive(), "it waits"
    second.join(30)
    assert len(problems) == 1
    with psycopg.connect(accounts) as connection:
        parents = connection.execute("SELECT account, parent FROM catalog.accounts WHERE parent IS NOT NULL").fetchall()
    assert parents == [("a", "b")]


def test_eight_accounts_stand_above_each_other_and_not_nine(accounts: str) -> None:
    """Whether the ninth comes on top, below, or in the middle."""
    for lower, upper in zip("abcdefg", "bcdefgh", strict=True):
        edit(accounts, "parent", upper, lower)
    assert TOO_DEEP in refused(accounts, "parent", "i", "h")
    assert TOO_DEEP in refused(accounts, "parent", "a", "i")
    edit(accounts, "parent", None, "d")
    edit(accounts, "parent", "j", "k")
    edit(accounts, "parent", "a", "j")
    edit(accounts, "parent", "i", "d")
    assert TOO_DEEP in refused(accounts, "parent", "e", "i")
    assert TOO_DEEP in refused(accounts, "parent", "e", "d")


FILED = {"account": "a", "name": "A", "plan": "p", "currency": "EUR"}


def stored(database: str, **account: Any) -> tuple[str, Any, Any]:
    """What storing a file did, and the tags and the parent that the account has then."""
    told = store(database, parse_catalog(json.dumps({"accounts": [FILED | account]})))
    return told[0].op, json.loads(told[0].after["tags"]), told[0].after["parent"]


def test_tags_and_parent_that_a_file_leaves_out_stay_and_empty_ones_go(accounts: str) -> None:
    """Else a file of before would take away what another system has written."""
    assert stored(accounts, tags={"team": "x"}, parent="b") == ("u", {"team": "x"}, "b")
    assert stored(accounts) == ("r", {"team": "x"}, "b")
    assert stored(accounts, tags={"team": "x"}, parent="b") == ("r", {"team": "x"}, "b")
    assert stored(accounts, tags={}, parent=None) == ("u", {}, None)
    assert stored(accounts, account="new", parent="a") == ("c", {}, "a")


def test_a_file_may_name_a_child_before_its_parent(database: str) -> None:
    rows = [FILED | {"parent": "z"}, FILED | {"account": "z", "name": "Z"}]
    told = store(database, parse_catalog(json.dumps({"plans": [{"plan": "p", "name": "P"}], "accounts": rows})))
    assert [change.op for change in told] == ["c", "c", "c"]


def test_a_parent_that_is_no_account_is_refused_and_named(accounts: str) -> None:
    with pytest.raises(CannotRun, match=r"accounts\.0\.parent is 'nobody': must be an account of the file or of the"):
        stored(accounts, parent="nobody")
    with pytest.raises(CannotRun, match=r"account 'a' cannot have the parent 'a': it stands above itself"):
        stored(accounts, parent="a")


def test_a_parent_is_not_deleted_and_its_children_are_named(accounts: str) -> None:
    edit(accounts, "parent", "a", "b")
    with pytest.raises(CannotRun, match=r"Account 'a' is the parent of 1 others \(b\): give them another first"):
        delete_row(accounts, CatalogTopic.ACCOUNTS, {"account": "a"}, None, "ann")
    delete_row(accounts, CatalogTopic.ACCOUNTS, {"account": "b"}, None, "ann")
    delete_row(accounts, CatalogTopic.ACCOUNTS, {"account": "a"}, None, "ann")


def test_a_renamed_column_that_we_read_is_named_until_it_is_back(accounts: str) -> None:
    needed = [
        (topic.value, name)
        for topic in CatalogTopic
        for name in (*CAPTURED_COLUMNS[topic], *GROWN_COLUMNS.get(topic, ()))
    ]
    assert read_capture(accounts).missing == ()
    with psycopg.connect(accounts) as connection:
        for table, name in needed:
            connection.execute(f"ALTER TABLE {table} RENAME COLUMN {name} TO {name}_x".encode())
    assert set(read_capture(accounts).missing) == {f"{table}.{name}" for table, name in needed}
    assert read_capture(accounts).is_late
    with psycopg.connect(accounts) as connection:
        for table, name in needed:
            connection.execute(f"ALTER TABLE {table} RENAME COLUMN {name}_x TO {name}".encode())
    assert read_capture(accounts).missing == ()


def test_there_and_back_again_the_catalog_is_as_it_was(accounts: str) -> None:
    with psycopg.connect(accounts) as connection:
        before = connection.execute("SELECT * FROM catalog.accounts ORDER BY account").fetchall()
    with migrator(accounts) as config:
        command.downgrade(config, "0030")
    migrate(accounts)
    with psycopg.connect(accounts) as connection:
        assert connection.execute("SELECT * FROM catalog.accounts ORDER BY account").fetchall() == before
