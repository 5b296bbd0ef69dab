"""configuration.md: every setting of the applications with its type, limits and default, as their models have them."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from pydantic import BaseModel, SecretStr

from dashboard.settings import Settings
from dashboard.sign_in import SignIn
from jobs.audit.config import AuditConfig
from jobs.billing.config import OrderedEventsConfig
from jobs.close.config import CloseConfig
from jobs.ingestion.config_groups import Backfill, Clocks, Reversal, SourceConvention
from jobs.ingestion.event_topic_settings import EventTopicSettings
from jobs.runtime.config import JobConfig
from jobs.runtime.environment import Environment, variable_of
from jobs.runtime.kafka.access import KafkaAccess
from jobs.settings.bursts import BurstConfig
from jobs.settings.holding import HoldConfig
from jobs.settings.meters import MeterConfig, OncePerConfig
from jobs.settings.patterns import PatternConfig
from jobs.settings.price_attributes import BandsConfig
from jobs.settings.views import (
    Counted,
    GaugesConfig,
    HopConfig,
    MeasureConfig,
    Selection,
    TopSelection,
    ViewConfig,
    WindowsConfig,
)
from jobs.stack import BESIDE_JOBS, Jobs
from reference.markdown import cell, code, page, table
from reference.schema_types import duration, type_of, unit_of

Model = type[BaseModel]

NESTED: Mapping[Model, str] = {
    MeterConfig: "meters",
    OncePerConfig: "once_per",
    HoldConfig: "hold",
    OrderedEventsConfig: "ordered_events",
    BandsConfig: "price_attributes",
    Clocks: "clocks",
    Backfill: "backfill",
    SourceConvention: "conventions",
    Reversal: "reversal",
    EventTopicSettings: "events",
    ViewConfig: "views",
    MeasureConfig: "measures",
    Counted: "count",
    Selection: "sum",
    TopSelection: "top",
    GaugesConfig: "gauges",
    WindowsConfig: "windows",
    HopConfig: "hop",
    PatternConfig: "patterns",
    BurstConfig: "burst",
}
"""Settings that have settings themselves, and what their section is called."""
_LINKS = {model.__name__: f"[`{title}`](#{title})" for model, title in NESTED.items()}
_INTRODUCTION = """
The applications read one YAML file: `weir up --config FILE`. The chart's [values](chart.md) have the same keys.
What is left out has its default. A setting that is unknown or outside its limits is refused before anything starts.
"""
_EXAMPLE = """
```yaml
meters:
  requests: {unit: request, count: outcomes}
jobs:
  billing:
    grace_seconds: 1800
```
"""
_OF_VIEWS = ("views", "windows", "patterns", "watches")
_WATCHED = (
    "Without a view, a pattern and watches, analytics does not run ([views](../how-to/watch-models.md), "
    "[patterns](../how-to/find-patterns.md), [watches](../how-to/watch-requests.md))."
)
_VARIABLES = """
Addresses and secrets are no settings: each program reads them from its environment. `weir up` and the chart set these
variables themselves; you set those of Kafka and Postgres where you run your own.
"""


def configuration_page() -> str:
    """The page."""
    models: dict[str, Model] = {name: _model(field.annotation) for name, field in Jobs.model_fields.items()}
    common = set(JobConfig.model_fields) - set(BESIDE_JOBS)
    own = {name: set(model.model_fields) - set(BESIDE_JOBS) - common for name, model in models.items()}
    sections = [
        _EXAMPLE.strip(),
        _section("Beside `jobs`", "What is metered, for all applications.", models["ingestion"], BESIDE_JOBS),
        _section("Beside `jobs`: what is watched", _WATCHED, models["analytics"], _OF_VIEWS),
        _section("Of every application", "Keys of each `jobs.<name>`.", JobConfig, common),
        *(_section(f"`jobs.{name}`", "", model, own[name]) for name, model in models.items()),
        *(_section(code(title), _used_by(model), model) for model, title in NESTED.items()),
        _section("`audit.config`", "Of audits that the chart starts. `weir audit` has options instead.", AuditConfig),
        _section("`close.config`", "Also the file of `weir close --config`.", CloseConfig),
        f"## Environment\n\n{_VARIABLES.strip()}\n\n{_variables()}",
    ]
    return page("Configuration", "the models of the applications", _INTRODUCTION, "\n\n".join(sections))


def _model(annotation: Any) -> Model:
    assert isinstance(annotation, type)
    assert issubclass(annotation, BaseModel)
    return annotation


def _used_by(model: Model) -> str:
    return cell((model.__doc__ or "").partition("\n\n")[0])


def _section(title: str, introduction: str, model: Model, names: Collection[str] | None = None) -> str:
    schema = model.model_json_schema()
    rows = [
        (
            code(name),
            type_of(schema["properties"][name], schema.get("$defs", {}), _LINKS, unit_of(name)),
            "required" if field.is_required() else _default_of(name, field.get_default(call_default_factory=True)),
            cell(field.description or ""),
        )
        for name, field in model.model_fields.items()
        if names is None or name in names
    ]
    listed = table(("setting", "type", "default", "meaning"), rows).rstrip()
    return "\n\n".join(part for part in (f"## {title}", introduction, listed) if part)


def default_of(value: Any) -> str:
    """A default as JSON; of settings that have their own table, their names or nothing."""
    match value:
        case None | BaseModel() | SecretStr() | "":
            return ""
        case Mapping() if value and all(isinstance(item, BaseModel) for item in value.values()):
            return ", ".join(map(code, value))
        case _:
            return code(json.dumps(value, ensure_ascii=False, default=str))


def _default_of(name: str, value: Any) -> str:
    spoken = duration(value) if unit_of(name) == "seconds" else ""
    return f"{default_of(value)} ({spoken})" if spoken else default_of(value)


def _variables() -> str:
    fields = {f"kafka_{name}": field for name, field in KafkaAccess.model_fields.items()}
    fields |= {name: field for name, field in Environment.model_fields.items() if name != "kafka"}
    rows = [
        (
            code(variable_of(name)),
            "required" if field.is_required() else default_of(field.default),
            cell(field.description or ""),
        )
        for name, field in fields.items()
    ]
    settings = [field for name, field in Settings.model_fields.items() if name != "sign_in"]
    of_dashboard = [str(field.description).partition(": ") for field in (*settings, *SignIn.model_fields.values())]
    of_dashboard_rows = [(code(variable), cell(meaning)) for variable, _, meaning in of_dashboard]
    return (
        f"{table(('variable', 'default', 'meaning'), rows)}\nThe dashboard reads these. What is left out is not "
        f"connected.\n\n{table(('variable', 'meaning'), of_dashboard_rows).rstrip()}"
    )
