"""Renders docs/reference/contracts.md from the contracts that Weir ships: `python -m metering.contracts.render`."""

from __future__ import annotations

from pathlib import Path

from metering.contracts.page import contracts_page

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "contracts.md"


if __name__ == "__main__":
    PAGE.write_text(contracts_page(), encoding="utf-8")
