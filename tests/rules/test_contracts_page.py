"""docs/reference/contracts.md is current, and says of contracts what the loader allows."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from metering.contracts.field_reader import ContractRefused
from metering.contracts.keywords import (
    ANNOTATIONS,
    MAX_FIELDS_OF_ALL,
    MAX_UNITS,
    NEEDED,
    REASONS,
    ROOT_KEYWORDS,
    VALUE_KEYWORDS,
)
from metering.contracts.page import EXAMPLE, FAMILIES, MEANINGS, REASON_MEANINGS, contracts_page
from metering.contracts.render import PAGE
from metering.contracts.schema import contract_of
from metering.contracts.shipped import shipped
from metering.vocabulary import Family


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == contracts_page(), "run: python -m metering.contracts.render"


def test_the_example_on_the_page_is_a_contract() -> None:
    (block,) = re.findall(r"```json\n(.*?)```", contracts_page(), re.DOTALL)
    assert json.loads(block) == EXAMPLE
    [gpu] = [field for field in contract_of(EXAMPLE, shipped()).fields if field.path[-1] == "gpu_seconds"]
    assert gpu.column == "gpu_seconds"


def test_each_annotation_each_reason_and_each_family_has_its_meaning() -> None:
    annotations = {*ANNOTATIONS, *(name for name in (*ROOT_KEYWORDS, *VALUE_KEYWORDS) if name.startswith("x-weir-"))}
    assert set(MEANINGS) == {*annotations, "format"}
    assert [reason.value for reason in REASON_MEANINGS] == list(REASONS)
    assert set(FAMILIES) == set(Family)


def test_the_limits_stand_on_the_page() -> None:
    assert all(str(limit) in contracts_page() for limit in (MAX_FIELDS_OF_ALL, MAX_UNITS))


def filling(family: Family, columns: list[str]) -> dict[str, Any]:
    """A contract whose fields fill these columns, and `region`."""
    properties = {name: {"type": "string", "x-weir-column": name} for name in (*columns, "region")}
    return {"$id": "x", "x-weir-family": family.value, "properties": {"data": {"properties": properties}}}


@pytest.mark.parametrize("family", Family)
def test_the_required_columns_of_a_family_are_those_that_the_loader_requires(family: Family) -> None:
    needed = list(NEEDED[family])
    assert contract_of(filling(family, needed), shipped()).family is family
    for left_out in needed:
        rest = [name for name in needed if name != left_out]
        with pytest.raises(ContractRefused, match=f"needs a field with the column {left_out}$"):
            contract_of(filling(family, rest), shipped())
