"""What the connector is told: in one order, and never the password."""

from __future__ import annotations

from pathlib import Path

import pytest

from catalog.capture import PASSWORD_VARIABLE, TABLES, connector, password, slot_name
from deployment.errors import CannotRun
from jobs.runtime.postgres import migrations
from jobs.streams import CatalogTopic

URL = "postgresql://ann:s%2Fecret@db.example:6543/Weir-Prod?sslmode=verify-full"


def test_the_password_is_left_to_the_environment() -> None:
    told = connector(URL, {})
    assert password(URL) == "s/ecret"
    assert not any("ecret" in value for value in told.values())
    assert told["database.password"] == f"${{env:{PASSWORD_VARIABLE}}}"


def test_the_address_is_taken_apart_as_libpq_does() -> None:
    told = connector(URL, {"PGSSLMODE": "disable", "PGSSLROOTCERT": "/ca.pem"})
    place = {
        name: told[f"database.{name}"] for name in ("hostname", "port", "user", "dbname", "sslmode", "sslrootcert")
    }
    assert place == {
        "hostname": "db.example",
        "port": "6543",
        "user": "ann",
        "dbname": "Weir-Prod",
        "sslmode": "verify-full",
        "sslrootcert": "/ca.pem",
    }
    assert connector("postgresql://ann@db/weir", {"PGSSLMODE": "require"})["database.sslmode"] == "require"


@pytest.mark.parametrize(("url", "lacks"), [("postgresql:///weir", "no host and no user"), ("host=db", "no user")])
def test_an_address_without_a_server_or_a_user_is_refused(url: str, lacks: str) -> None:
    with pytest.raises(CannotRun, match=lacks):
        connector(url, {})


def test_every_catalog_topic_is_captured_in_order_of_dependence() -> None:
    assert set(TABLES) == set(CatalogTopic)
    assert TABLES.index(CatalogTopic.ACCOUNTS) > max(map(TABLES.index, (CatalogTopic.PLANS, CatalogTopic.PRICES)))
    migration = Path(migrations.__path__[0], "versions", "0030_change_capture.py")
    assert all(table in migration.read_text(encoding="utf-8") for table in TABLES)


@pytest.mark.parametrize("database", ["weir", "Weir-Prod", "ä" * 99])
def test_a_slot_has_a_name_that_postgres_takes_and_the_capture_finds(database: str) -> None:
    name = slot_name(database)
    assert name.startswith("weir_catalog")
    assert len(name) < 64
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789_")
