"""docs/contracts.md is current, and says of contracts what the loader allows."""

from __future__ import annotations

import json
import re

from metering.contracts.page import EXAMPLE, FAMILIES, MEANINGS, contracts_page
from metering.contracts.render import PAGE
from metering.contracts.schema import ANNOTATIONS, ROOT_KEYWORDS, VALUE_KEYWORDS, ContractRefused, contract_of
from metering.contracts.shipped import shipped
from metering.words import Family


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == contracts_page(), "run: python -m metering.contracts.render"


def test_the_example_on_the_page_is_a_contract() -> None:
    (block,) = re.findall(r"```json\n(.*?)```", contracts_page(), re.DOTALL)
    assert json.loads(block) == EXAMPLE
    assert contract_of(EXAMPLE, shipped()).fields[-1].column == "gpu_seconds"


def test_each_annotation_and_each_family_has_its_meaning() -> None:
    annotations = {*ANNOTATIONS, *(name for name in (*ROOT_KEYWORDS, *VALUE_KEYWORDS) if name.startswith("x-weir-"))}
    assert set(MEANINGS) == {*annotations, "format"}
    assert set(FAMILIES) == set(Family)


def test_the_columns_that_a_family_must_fill_are_those_that_the_loader_asks_for() -> None:
    for family, (_, columns) in FAMILIES.items():
        needed = re.findall(r"\w+", columns)
        for left_out in (None, *needed):
            filled = [name for name in needed if name != left_out] or ["region"]
            properties = {name: {"type": "string", "x-weir-column": name} for name in filled}
            document = {"$id": "x", "x-weir-family": family.value, "properties": {"data": {"properties": properties}}}
            try:
                contract_of(document, shipped())
            except ContractRefused as refusal:
                assert left_out is not None
                assert f"needs a field with the column {left_out}" in str(refusal)
            else:
                assert left_out is None
