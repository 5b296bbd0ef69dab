"""What is generated is current, and what is documented is all there is."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
import yaml

from charts.comments import documented_values, undocumented
from charts.render import CHART, rendered_files
from charts.values import Values
from tests.chart.helm import VALUES


def schema() -> dict[str, Any]:
    document: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    return document


@pytest.mark.parametrize("path", rendered_files(), ids=lambda path: str(path.relative_to(CHART)))
def test_generated_files_are_current(path: Any) -> None:
    assert path.read_text(encoding="utf-8") == rendered_files()[path], "run: python -m charts.render"


def test_every_value_is_documented_in_place() -> None:
    assert undocumented((CHART / "values.yaml").read_text(encoding="utf-8")) == []


def test_a_value_without_a_comment_is_found() -> None:
    assert undocumented("a:\n  # Said.\n  b: 1\n  c: 2\n") == ["a.c"]


def test_a_section_comment_does_not_document_its_values() -> None:
    assert undocumented("# Said.\na:\n  # Said too.\n  b: 1\n  c: 2\n") == ["a.c"]


def test_the_defaults_pass_the_schema() -> None:
    jsonschema.validate(yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8")), schema())


@pytest.mark.parametrize("name", sorted(path.name for path in VALUES.glob("*.yaml")))
def test_the_examples_pass_the_schema(name: str) -> None:
    jsonschema.validate(yaml.safe_load((VALUES / name).read_text(encoding="utf-8")), schema())


def test_every_field_of_the_model_has_a_default_in_values() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    modelled = {field.alias for field in Values.model_fields.values()} - {"global"}
    assert modelled == set(values)


def test_no_mapping_of_ours_takes_unknown_keys() -> None:
    open_mappings = [
        name for name, part in schema()["$defs"].items() if part["type"] == "object" and part["additionalProperties"]
    ]
    assert open_mappings == []
    assert schema()["additionalProperties"] is False


def test_descriptions_reach_the_schema() -> None:
    (bootstrap,) = [v for v in documented_values((CHART / "values.yaml").read_text()) if v.path[-1] == "bootstrap"]
    assert schema()["$defs"]["Kafka"]["properties"]["bootstrap"]["description"] == bootstrap.description
