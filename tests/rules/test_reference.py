"""The pages of docs/reference are current, and describe everything that there is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from cli.main import app
from deployment.topic_list import TOPICS
from jobs.runtime.environment import Environment
from jobs.runtime.kafka.access import KafkaAccess
from jobs.stack import Jobs
from jobs.streams import HEARTBEATS_TOPIC, CatalogTopic
from metering.vocabulary import Disposition, Family, Outcome, Published, Status, UsageCause, UsageSource
from reference.configuration import NESTED
from reference.markdown import cell, code, table
from reference.render import rendered
from reference.schema_types import duration, type_of, unit_of
from reference.tables import DELTA

ROOT: Any = typer.main.get_command(app)
ROOT_FOLDER = Path(__file__).parents[2]
PAGES = {path.name: text for path, text in rendered().items()}


@pytest.mark.parametrize("path", rendered(), ids=lambda path: path.name)
def test_a_page_is_current(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == rendered()[path], "run: make render"


def commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    yield path, command
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, f"{path} {name}")


@pytest.mark.parametrize(("path", "command"), list(commands(ROOT, "weir"))[1:], ids=lambda value: str(value)[:40])
def test_each_command_has_a_section_with_each_of_its_options(path: str, command: Any) -> None:
    page = PAGES["cli.md"]
    (section,) = [part for part in page.split("\n#") if part.lstrip("# ").partition("\n")[0] == path]
    options = [name for each in command.params for name in each.opts if each.param_type_name == "option"]
    assert [name for name in options if f"`{name}`" not in section] == []
    assert all(each.help for each in command.params)
    assert command.help


def test_each_command_is_in_a_group_of_the_help() -> None:
    assert {command.rich_help_panel for command in ROOT.commands.values()} == {"Run", "Query", "Change", "Repair"}


def test_each_setting_has_a_meaning_and_each_that_has_settings_itself_a_table() -> None:
    schema = Jobs.model_json_schema()
    models = {name: part for name, part in schema["$defs"].items() if part["type"] == "object"}
    own = {field.annotation.__name__ for field in Jobs.model_fields.values() if field.annotation}
    assert models.keys() - own == {model.__name__ for model in NESTED}
    settings = [(name, setting) for part in models.values() for name, setting in part["properties"].items()]
    assert [name for name, setting in settings if not setting.get("description")] == []
    assert [name for name, _ in settings if f"| `{name}` |" not in PAGES["configuration.md"]] == []


def test_each_variable_has_a_meaning() -> None:
    fields = {**KafkaAccess.model_fields, **Environment.model_fields}
    assert [name for name, field in fields.items() if name != "kafka" and not field.description] == []


@pytest.mark.parametrize("package", ["api", "webhooks"])
def test_each_variable_that_a_server_reads_is_on_the_page_of_configuration(package: str) -> None:
    texts = [path.read_text(encoding="utf-8") for path in (ROOT_FOLDER / package).rglob("*.py")]
    read = {name for text in texts for name in re.findall(r'"(WEIR_[A-Z_]+)"', text)}
    assert len(read) > 4
    assert {name for name in read if f"| `{name}` |" not in PAGES["configuration.md"]} == set()


@pytest.mark.parametrize(
    ("name", "column", "values"),
    [
        ("journal", "disposition", Disposition),
        ("journal", "family", Family),
        ("journal", "status", Status),
        ("journal", "usage_source", UsageSource),
        ("usage", "outcome", Outcome),
        ("usage", "cause", UsageCause),
    ],
)
def test_a_column_of_a_closed_set_is_described_by_all_its_values(name: str, column: str, values: type[StrEnum]) -> None:
    meaning = yaml.safe_load(DELTA.read_text(encoding="utf-8"))[name]["columns"][column]
    assert {value for value in values if value not in re.findall(r"\w+", meaning)} == set()


def test_each_topic_is_made() -> None:
    assert {topic.name for topic in TOPICS} >= {*CatalogTopic, *Published, HEARTBEATS_TOPIC}
    assert len({topic.name for topic in TOPICS}) == len(TOPICS)


def test_a_pipe_and_an_angle_do_not_break_a_table() -> None:
    assert cell("a | b, `c|d`, <e> and 2*3") == "a \\| b, <code>c&#124;d</code>, &lt;e> and 2\\*3"
    assert code(None) == code("") == ""
    assert table(("a", "b"), [("1", "")]) == "| a | b |\n| --- | --- |\n| 1 | |\n"


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "integer", "minimum": 1, "maximum": 86_400}, "integer, 1 to 86,400 seconds"),
        ({"type": "number", "exclusiveMinimum": 0}, "number, above 0 seconds"),
        ({"type": "integer", "minimum": 0}, "integer, from 0 seconds"),
        ({"anyOf": [{"type": "boolean"}, {"type": "null"}]}, "boolean"),
        ({"type": "array", "maxItems": 2, "items": {"enum": ["a", "b"]}}, "list (at most 2) of `a`, `b`"),
        ({"$ref": "#/$defs/Other"}, "elsewhere"),
    ],
)
def test_a_type_is_written_with_its_limits(schema: dict[str, Any], words: str) -> None:
    unit = "" if schema.get("type") == "array" else "seconds"
    assert type_of(schema, {}, {"Other": "elsewhere"}, unit) == words


def test_a_unit_is_the_end_of_a_name_and_a_duration_is_written_as_people_write_it() -> None:
    assert [unit_of(name) for name in ("grace_seconds", "databaseDiskGib", "seconds", "topic")] == [
        *("seconds", "GiB", "seconds"),
        "",
    ]
    assert [duration(seconds) for seconds in (86_400, 172_800, 3_600, 90_000, 600)] == [
        *("1 day", "2 days", "1 hour", "25 hours"),
        "",
    ]
