"""The address of a database carries Weir's own schema: whatever form it has, and whatever else stands in it."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from dashboard.settings import Settings
from deployment.errors import CannotRun
from deployment.stack import deployment_of
from jobs.__main__ import migrate
from jobs.runtime.environment import Environment
from jobs.runtime.errors import ExitStatus
from jobs.runtime.postgres.address import in_schema, schema_of

URL = "postgresql://weir:secret@db:5432/weir"
POD = {
    "WEIR_KAFKA_BOOTSTRAP": "kafka:9092",
    "WEIR_POSTGRES_URL": URL,
    "WEIR_TABLES": "/tables",
    "WEIR_CHECKPOINTS": "/checkpoints",
    "WEIR_JARS": "/jars",
}
NAMES = st.from_regex(r"[a-z_][a-z0-9_]{0,62}", fullmatch=True).filter(
    lambda name: name not in ("public", "catalog", "information_schema") and not name.startswith("pg_")
)
TEXTS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=20)
PARTS = st.fixed_dictionaries(
    {"user": TEXTS, "password": TEXTS, "host": st.just("db.example"), "dbname": TEXTS},
    optional={
        "sslmode": st.sampled_from(["require", "verify-full"]),
        "options": st.sampled_from(["-c statement_timeout=2000", "-cwork_mem=64MB -c TimeZone=UTC"]),
    },
)


def as_url(parts: dict[str, str]) -> str:
    user, password, name = (quote(parts[key], safe="") for key in ("user", "password", "dbname"))
    rest = "&".join(f"{key}={quote(parts[key])}" for key in ("sslmode", "options") if key in parts)
    return f"postgresql://{user}:{password}@{parts['host']}/{name}{'?' if rest else ''}{rest}"


@given(PARTS, NAMES, st.booleans())
def test_nothing_but_the_schema_is_added_and_only_once(parts: dict[str, str], schema: str, is_url: bool) -> None:
    url = as_url(parts) if is_url else make_conninfo(**parts)
    placed = in_schema(url, schema)
    said = conninfo_to_dict(placed)
    assert schema_of(placed) == schema
    assert str(said.pop("options")) == f"{parts.get('options', '')} -csearch_path={schema}".strip()
    assert said == {key: value for key, value in parts.items() if key != "options"}
    assert placed.startswith("postgresql://") == is_url
    assert in_schema(placed) == in_schema(placed, schema) == placed


@pytest.mark.parametrize(
    ("options", "schema"),
    [
        ("-csearch_path=metering", "metering"),
        ("-c search_path=metering,public -c work_mem=64MB", "metering"),
        ("--search_path=metering", "metering"),
        ('-csearch_path="$user",public', "weir"),
        ("-c search_path=public", "weir"),
    ],
)
def test_a_search_path_in_the_address_is_kept_if_it_begins_with_weirs_schema(options: str, schema: str) -> None:
    assert schema_of(in_schema(f"{URL}?options={quote(options)}")) == schema


@pytest.mark.parametrize("name", ["public", "catalog", "information_schema", "pg_weir", "Weir", "a-b", "x" * 64])
def test_a_name_that_cannot_be_weirs_own_is_refused_wherever_it_is_read(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    named = {**POD, "WEIR_POSTGRES_SCHEMA": name}
    with pytest.raises(ValueError, match="no name for a schema"):
        Environment.read(named)
    with pytest.raises(CannotRun, match=r"WEIR_POSTGRES_SCHEMA is .*no name for a schema"):
        deployment_of(named)
    with pytest.raises(ValueError, match=r"WEIR_POSTGRES_SCHEMA is .*no name for a schema"):
        Settings.of(named)
    for variable, value in named.items():
        monkeypatch.setenv(variable, value)
    with pytest.raises(SystemExit) as ended:
        migrate()
    assert ended.value.code == ExitStatus.BAD_CONFIGURATION
    assert capsys.readouterr().err.startswith(f"WEIR_POSTGRES_SCHEMA is '{name}'")


@pytest.mark.parametrize("schema", ["", "metering"])
def test_every_reader_of_the_environment_connects_to_the_same_schema(schema: str) -> None:
    named = {**POD, "WEIR_POSTGRES_SCHEMA": schema}
    deployment = deployment_of(named)
    assert deployment is not None
    urls = {Environment.read(named).postgres_url, Settings.of(named).postgres_url, deployment.postgres_url}
    assert [schema_of(url) for url in urls] == [schema or "weir"]


def test_an_address_and_a_variable_that_differ_are_refused() -> None:
    placed = in_schema(URL, "metering")
    with pytest.raises(ValueError, match="is 'weir', but the search_path in WEIR_POSTGRES_URL begins with 'metering'"):
        in_schema(placed, "weir")


def test_an_invalid_address_is_passed_on_unchanged() -> None:
    for address in ("db:5432/weir", "postgresql://weir:a%zz@db/weir"):
        assert in_schema(address) == address
