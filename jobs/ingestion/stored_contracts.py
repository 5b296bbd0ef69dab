"""The journal's record of effective contracts (`IngestionConfig.deciding`) → those contracts."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

from jobs.ingestion.limits_of_meters import limited_to
from jobs.journal.families import EARLIER
from jobs.runtime.effective_rules import Rules
from metering.contracts.model import Contract
from metering.contracts.schema import SHIPPED_REF, contract_of


def stored_contracts(rules: Rules, sums: Mapping[str, str]) -> dict[str, Contract | None]:
    """The contract of each type under these rules of ingestion; None: a release before contracts read it by code.

    `sums`: the column that each meter adds up, which never changes. Raises ContractRefused for documents that no
    longer are contracts.
    """
    if "contracts" not in rules:
        return dict.fromkeys(EARLIER)
    documents = rules["contracts"]
    types = [name for name in documents if not name.startswith(SHIPPED_REF)]
    shipped = {name: documents.get(f"{SHIPPED_REF}{name}", documents[name]) for name in types}
    contracts = {}
    for name in types:
        # What replaces one of Weir's may build on that; none builds on itself.
        replaced = {name: documents[f"{SHIPPED_REF}{name}"]} if f"{SHIPPED_REF}{name}" in documents else {}
        others = {other: document for other, document in shipped.items() if other != name}
        contracts[name] = contract_of(documents[name], {**others, **replaced})
    limits: dict[str, Decimal | None] = dict.fromkeys(rules["summed"])
    for meter, limit in rules["max_per_event"].items():
        column = sums[meter]
        limits[column] = min(Decimal(limit), limits[column] or Decimal(limit))
    return dict(limited_to(contracts, limits))
