"""configuration.md: every setting of the applications with its type, limits and default, as their models have them."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from pydantic import BaseModel, SecretStr

from api.__main__ import DEFAULT_PORT, HOST_VARIABLE, PORT_VARIABLE
from api.events import ACCOUNT_ATTRIBUTE
from api.ingestion_lag import MAX_LAG_SECONDS
from api.server import (
    ACCOUNT_ATTRIBUTE_VARIABLE,
    EVENTS_PER_MINUTE_VARIABLE,
    ISSUER_VARIABLES,
    MAX_LAG_VARIABLE,
    REQUESTS_PER_SECOND_VARIABLE,
)
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
from webhooks.__main__ import ALLOW_PRIVATE_VARIABLE
from webhooks.mail import PASSWORD_VARIABLE, PRIVATE_VARIABLE, SENDER_VARIABLE, URL_VARIABLE

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
The applications read one YAML file: `weir up --config FILE`. In the chart's [values](chart.md) the settings of an
application are in `jobs.<name>.config`, and `price_attributes` is `priceAttributes`; all else has the same names.
What is left out has its default. A setting that is unknown or outside its limits is refused before anything starts.
"""
_EXAMPLE = """
```yaml
dimensions: [api_key_id]
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
Addresses and secrets are not settings: each program reads them from its environment. `weir up` and the chart set these
variables themselves; you set those of Kafka and Postgres where you run your own.
"""


def configuration_page() -> str:
    """The page."""
    models: dict[str, Model] = {name: _model(field.annotation) for name, field in Jobs.model_fields.items()}
    common = set(JobConfig.model_fields) - set(BESIDE_JOBS)
    own = {name: set(model.model_fields) - set(BESIDE_JOBS) - common for name, model in models.items()}
    sections = [
        _EXAMPLE.strip(),
        _section("Top level", "What is metered, for all applications.", models["ingestion"], BESIDE_JOBS),
        _section("Top level: what is watched", _WATCHED, models["analytics"], _OF_VIEWS),
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


_OF_API: Mapping[str, tuple[str, str]] = {
    HOST_VARIABLE: ("0.0.0.0", "Address on which the API listens."),
    PORT_VARIABLE: (DEFAULT_PORT, "Its port."),
    MAX_LAG_VARIABLE: (str(MAX_LAG_SECONDS), "How far ingestion may be behind before events are refused; 0: no limit."),
    REQUESTS_PER_SECOND_VARIABLE: ("0", "Rate limit of a key that has none of its own, in each server; 0: no limit."),
    EVENTS_PER_MINUTE_VARIABLE: ("0", "The same of events."),
    ACCOUNT_ATTRIBUTE_VARIABLE: (ACCOUNT_ATTRIBUTE, "The attribute of a span or its resource that names the account."),
    ISSUER_VARIABLES["issuer"]: ("", "The identity provider whose tokens are taken, as its tokens have it in `iss`."),
    ISSUER_VARIABLES["audience"]: ("", "The audience that only this API has; needed with an issuer."),
    ISSUER_VARIABLES["accounts_claim"]: ("weir_accounts", "The claim that names accounts."),
    ISSUER_VARIABLES["scopes_claim"]: ("scope", "The claim that names scopes."),
}
"""Variable → its default, and what it is."""
_OF_WEBHOOKS: Mapping[str, tuple[str, str]] = {
    ALLOW_PRIVATE_VARIABLE: ("false", "Whether private addresses and plain HTTP may be called: for tests."),
    URL_VARIABLE: ("", "The mail server: `smtps://USER@HOST:PORT`, or `smtp://` for STARTTLS."),
    SENDER_VARIABLE: ("", "The address that sends mail; needed with a server."),
    PASSWORD_VARIABLE: ("", "The password of the user in the server's address."),
    PRIVATE_VARIABLE: ("false", "Whether the mail server may have a private address."),
}


def _table_of(variables: Mapping[str, tuple[str, str]]) -> str:
    rows = [(code(name), code(default) if default else "", cell(text)) for name, (default, text) in variables.items()]
    return table(("variable", "default", "meaning"), rows)


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
        f"{table(('variable', 'default', 'meaning'), rows)}\nThe API (`python -m api`) needs those of Kafka and "
        f"Postgres, too, and `WEIR_TABLES` for routes that read the tables.\n\n{_table_of(_OF_API)}\nThe sender of "
        f"webhooks (`python -m webhooks`) needs `WEIR_POSTGRES_URL`, too.\n\n{_table_of(_OF_WEBHOOKS)}\n"
        "The dashboard reads these. What is left out is not connected.\n\n"
        f"{table(('variable', 'meaning'), of_dashboard_rows).rstrip()}"
    )
