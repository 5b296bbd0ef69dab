"""What a value of a JSON Schema may be, in a few words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reference.markdown import code

Schema = Mapping[str, Any]

_KINDS = {"integer": "integer", "number": "number", "boolean": "boolean", "string": "text", "object": "mapping"}
_UNITS = {"seconds": "seconds", "ms": "milliseconds", "mib": "MiB", "gib": "GiB", "bytes": "bytes"}
"""The unit of a value, by the last word of its name."""
_REF = "#/$defs/"


def type_of(schema: Schema, definitions: Mapping[str, Schema], links: Mapping[str, str], unit: str = "") -> str:
    """The type with its limits, in `unit`, as Markdown. `links` has the Markdown of definitions shown elsewhere."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix(_REF)
        return links.get(name) or type_of(definitions[name], definitions, links, unit)
    if "anyOf" in schema:
        parts = [part for part in schema["anyOf"] if part.get("type") != "null"]
        return " or ".join(dict.fromkeys(type_of(part, definitions, links, unit) for part in parts))
    inner = _values(schema)
    if inner is not None:
        what = "list{} of" if schema["type"] == "array" else "mapping{} to"
        return f"{what.format(_limited(schema))} {type_of(inner, definitions, links, unit)}"
    return _of_one(schema, unit)


def unit_of(name: str) -> str:
    """The unit that a name ends with (`grace_seconds`, `databaseDiskGib`); empty without one."""
    words = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)
    return _UNITS.get(words.rpartition("_")[2], "")


def duration(seconds: Any) -> str:
    """As people say it, where it is whole hours or days; else empty."""
    for size, word in ((86_400, "day"), (3_600, "hour")):
        if isinstance(seconds, int) and seconds >= size and seconds % size == 0:
            return f"{seconds // size} {word}{'s' if seconds > size else ''}"
    return ""


def _of_one(schema: Schema, unit: str) -> str:
    if "enum" in schema or "const" in schema:
        return ", ".join(code(value or '""') for value in schema.get("enum", [schema.get("const")]))
    if schema.get("format") == "date-time":
        return "instant"
    kind = schema.get("type")
    limits = _range(schema, unit) if kind in ("integer", "number") else ""
    return f"{_KINDS.get(str(kind), 'anything')}{limits}"


def _values(schema: Schema) -> Schema | None:
    """What a list or mapping holds, where the schema has it."""
    patterns = schema.get("patternProperties")
    inner = next(iter(patterns.values())) if patterns else schema.get("additionalProperties", schema.get("items"))
    return inner if isinstance(inner, Mapping) else None


def _limited(schema: Schema) -> str:
    most = schema.get("maxItems", schema.get("maxProperties"))
    return "" if most is None else f" (at most {most})"


def _range(schema: Schema, unit: str) -> str:
    least, above, most = schema.get("minimum"), schema.get("exclusiveMinimum"), schema.get("maximum")
    begins = f"above {_number(above)}" if above is not None else "" if least is None else _number(least)
    ends = "" if most is None else _number(most)
    limits = f"{begins} to {ends}" if begins and ends else f"from {begins}" if least is not None else begins or ends
    text = " ".join(part for part in (limits, unit) if part)
    return f", {text}" if text else ""


def _number(limit: float) -> str:
    return f"{int(limit):,}" if float(limit).is_integer() else str(limit)
