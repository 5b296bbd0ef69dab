"""chart.md: every value of the Helm chart, as its schema and the comments of values.yaml have it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import groupby
from typing import Any

from charts.comments import Value, documented_values
from charts.render import CHART
from charts.schema import values_schema
from jobs.audit.config import AuditConfig
from jobs.close.config import CloseConfig
from jobs.stack import Jobs
from reference.configuration import NESTED
from reference.markdown import cell, code, page, table
from reference.schema_types import Schema, type_of, unit_of

_CONFIGURATION = "configuration.md"
_JOBS: Mapping[str, Any] = Jobs.model_fields
_LINKS = {
    **{field.annotation.__name__: f"[settings]({_CONFIGURATION}#jobs{name})" for name, field in _JOBS.items()},
    CloseConfig.__name__: f"[settings]({_CONFIGURATION}#closeconfig)",
    AuditConfig.__name__: f"[settings]({_CONFIGURATION}#auditconfig)",
    **{model.__name__: f"[`{title}`]({_CONFIGURATION}#{title})" for model, title in NESTED.items()},
}
"""Where the settings of applications are, which are values of the chart, too."""
_INTRODUCTION = """
[The chart's README](../../charts/weir/README.md) says what it needs and how to install it. `helm install` and
`helm upgrade` refuse a value that is unknown or of another type.
"""


def chart_page() -> str:
    """The page."""
    documented = documented_values((CHART / "values.yaml").read_text(encoding="utf-8"))
    schema = values_schema(documented)
    sections = [
        _section(name, list(values), schema) for name, values in groupby(documented, key=lambda value: value.path[0])
    ]
    return page("Chart values", "`charts/weir/values.yaml` and its schema", _INTRODUCTION, "\n\n".join(sections))


def _section(name: str, values: list[Value], schema: Schema) -> str:
    first, *rest = values
    above = cell(first.description) if first.is_section else ""
    shown = rest if first.is_section else values
    rows = [
        (
            f"**{code('.'.join(value.path))}**" if value.is_section else code(".".join(value.path)),
            "" if value.is_section else _type(value, schema),
            "" if value.is_section else code(json.dumps(value.default, ensure_ascii=False)),
            cell(value.description),
        )
        for value in shown
    ]
    listed = table(("value", "type", "default", "meaning"), rows).rstrip()
    return "\n\n".join(part for part in (f"## {code(name)}", above, listed) if part)


def _type(value: Value, schema: Schema) -> str:
    """What its place in the schema says; nothing within a mapping that Kubernetes defines."""
    place: Mapping[str, Any] | None = schema
    for step in value.path:
        while place and "$ref" in place:
            place = schema["$defs"][place["$ref"].rpartition("/")[2]]
        place = (place or {}).get("properties", {}).get(step)
    return "" if place is None else type_of(place, schema["$defs"], _LINKS, unit_of(value.path[-1]))
