"""`values.schema.json`: types from the models, descriptions from the comments of values.yaml."""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from charts.comments import Value
from charts.values import Values


class _WithoutTitles(GenerateJsonSchema):
    """Titles would repeat the names of the fields."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002 — pydantic's signature
        return False


def values_schema(documented: list[Value]) -> dict[str, Any]:
    """The schema that helm checks all values against. `documented` is what values.yaml says of each."""
    schema = Values.model_json_schema(schema_generator=_WithoutTitles)
    for definition in (schema, *schema["$defs"].values()):
        for hint in ("title", "description"):
            definition.pop(hint, None)
    for value in documented:
        _describe(schema, value)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _describe(schema: dict[str, Any], value: Value) -> None:
    """Put the comment at the value's place, through references. A place that is shared is described once."""
    place = schema
    for step in value.path:
        place = _resolved(schema, place).get("properties", {}).get(step)
        if place is None:
            return  # inside a mapping that Kubernetes defines
    place.setdefault("description", value.description)


def _resolved(schema: dict[str, Any], place: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in place:
        place = schema["$defs"][place["$ref"].removeprefix("#/$defs/")]
    return place
