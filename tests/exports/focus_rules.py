"""Rules of FOCUS Cost and Usage that a program can check, by their ids in FOCUS's requirements model (CC-BY-4.0).

The ids are those of 1.2; the model of 1.3 has `CAU-` before them. Those with another letter at the end than M are
conditional. FOCUS's own validator needs Python 3.12, so it is no dependency: the decision about exports says what it
found. Imports nothing of Weir.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

Row = Mapping[str, Any]
Rule = Callable[[Row], bool]

TEXTS = (
    *("BillingAccountId", "BillingAccountName", "BillingCurrency", "ChargeCategory", "ChargeDescription"),
    *("ChargeFrequency", "InvoiceIssuerName", "ProviderName", "PublisherName", "ServiceCategory", "ServiceName"),
    "ServiceSubcategory",
)
COSTS = ("BilledCost", "ContractedCost", "EffectiveCost", "ListCost")
INSTANTS = ("BillingPeriodEnd", "BillingPeriodStart", "ChargePeriodEnd", "ChargePeriodStart")
MANDATORY = (
    *TEXTS[:4],
    *TEXTS[6:9],
    *COSTS,
    *INSTANTS,
    *("ChargeClass", "ChargeDescription", "PricingQuantity", "PricingUnit", "ServiceCategory", "ServiceName"),
)
"""CostAndUsage-D-005 to D-068, of feature level Mandatory."""
SINCE_1_3 = ("HostProviderName", "ServiceProviderName")
GONE_IN_1_4 = ("ProviderName", "PublisherName")
NOT_NULL = {
    "BilledCost-C-003-M": "BilledCost",
    "BillingAccountId-C-001-M": "BillingAccountId",
    "BillingAccountName-C-003-C": "BillingAccountName",
    "BillingCurrency-C-004-M": "BillingCurrency",
    "BillingPeriodEnd-C-003-M": "BillingPeriodEnd",
    "BillingPeriodStart-C-003-M": "BillingPeriodStart",
    "ChargeCategory-C-002-M": "ChargeCategory",
    "ChargeDescription-C-003-O": "ChargeDescription",
    "ChargeFrequency-C-002-M": "ChargeFrequency",
    "ChargePeriodEnd-C-003-M": "ChargePeriodEnd",
    "ChargePeriodStart-C-003-M": "ChargePeriodStart",
    "ContractedCost-C-003-M": "ContractedCost",
    "EffectiveCost-C-003-M": "EffectiveCost",
    "InvoiceIssuerName-C-003-M": "InvoiceIssuerName",
    "ListCost-C-003-M": "ListCost",
    "ProviderName-C-003-M": "ProviderName",
    "PublisherName-C-003-M": "PublisherName",
    "ServiceCategory-C-002-M": "ServiceCategory",
    "ServiceName-C-003-M": "ServiceName",
    "ServiceSubcategory-C-002-M": "ServiceSubcategory",
}
OF_USAGE = {
    "ConsumedQuantity-C-006-C": "ConsumedQuantity",
    "ContractedUnitPrice-C-006-C": "ContractedUnitPrice",
    "ListUnitPrice-C-005-C": "ListUnitPrice",
    "PricingCategory-C-004-C": "PricingCategory",
    "PricingQuantity-C-005-C": "PricingQuantity",
    "SkuId-C-005-C": "SkuId",
    "SkuPriceId-C-005-C": "SkuPriceId",
}
"""Not null where ChargeCategory is Usage and ChargeClass is not Correction."""
NULL_TOGETHER = {
    "ConsumedUnit-C-005-C": ("ConsumedUnit", "ConsumedQuantity"),
    "PricingUnit-C-005-C": ("PricingUnit", "PricingQuantity"),
    "RegionName-C-004-C": ("RegionName", "RegionId"),
    "SubAccountName-C-004-C": ("SubAccountName", "SubAccountId"),
}
"""The first is null exactly where the second is (with the rule after it)."""
ALLOWED: dict[str, tuple[str, set[str | None]]] = {
    "ChargeCategory-C-003-M": ("ChargeCategory", {"Usage", "Purchase", "Tax", "Credit", "Adjustment"}),
    "ChargeClass-C-005-C": ("ChargeClass", {None, "Correction"}),
    "ChargeFrequency-C-003-M": ("ChargeFrequency", {"One-Time", "Recurring", "Usage-Based"}),
    "PricingCategory-C-007-M": ("PricingCategory", {None, "Standard", "Dynamic", "Committed", "Other"}),
    "ServiceSubcategory-C-004-M": ("ServiceSubcategory", {"AI Platforms", "Bots", "Generative AI", "Machine Learning"}),
}
_UNIT = re.compile(r"([1-9]\d* )?[A-Z][^/]*s(/[A-Z]\w*)?")
_JSON_VALUES = (str, int, float, bool, type(None))


def _is_flat_object(text: str | None) -> bool:
    if text is None:
        return True
    pairs = json.loads(text, object_pairs_hook=lambda found: found)
    names = [name for name, _ in pairs]
    return len(set(names)) == len(names) and all(isinstance(value, _JSON_VALUES) for _, value in pairs)


def _product(price: str, cost: str) -> Rule:
    return lambda row: row[price] is None or row[price] * row["PricingQuantity"] == row[cost]


def _not_null(name: str) -> Rule:
    return lambda row: row[name] is not None


def _not_null_of_usage(name: str) -> Rule:
    return lambda row: row["ChargeCategory"] != "Usage" or row["ChargeClass"] == "Correction" or row[name] is not None


def _null_together(one: str, other: str) -> Rule:
    return lambda row: (row[one] is None) == (row[other] is None)


def _allowed(name: str, values: set[str | None]) -> Rule:
    return lambda row: row[name] in values


RULES: dict[str, Rule] = {
    **{rule: _not_null(name) for rule, name in NOT_NULL.items()},
    **{rule: _not_null_of_usage(name) for rule, name in OF_USAGE.items()},
    **{rule: _null_together(*names) for rule, names in NULL_TOGETHER.items()},
    **{rule: _allowed(*allowed) for rule, allowed in ALLOWED.items()},
    "BilledCost-C-001-M": lambda row: all(isinstance(row[name], Decimal) for name in COSTS),
    "BillingCurrency-C-003-M": lambda row: re.fullmatch(r"[A-Z]{3}", row["BillingCurrency"]) is not None,
    "BillingPeriodEnd-C-004-M": lambda row: row["BillingPeriodStart"] < row["BillingPeriodEnd"],
    "ChargeFrequency-C-004-C": lambda row: row["ChargeFrequency"] != "Usage-Based" or row["ChargeCategory"] == "Usage",
    "ChargePeriodEnd-C-004-M": lambda row: row["ChargePeriodStart"] < row["ChargePeriodEnd"],
    "ConsumedQuantity-C-004-C": lambda row: row["ChargeCategory"] == "Usage" or row["ConsumedQuantity"] is None,
    "ContractedCost-C-008-C": lambda row: (
        row["ChargeCategory"] == "Usage" or row["ContractedCost"] == row["BilledCost"]
    ),
    "ContractedCost-C-009-C": _product("ContractedUnitPrice", "ContractedCost"),
    "ContractedUnitPrice-C-009-C": lambda row: (row["ContractedUnitPrice"] or 0) >= 0,
    "DateTimeFormat-A-001-M": lambda row: all(row[name].utcoffset() == UTC.utcoffset(None) for name in INSTANTS),
    "KeyValueFormat-A-001-M": lambda row: _is_flat_object(row["Tags"]) and _is_flat_object(row["SkuPriceDetails"]),
    "ListCost-C-009-C": _product("ListUnitPrice", "ListCost"),
    "ListUnitPrice-C-008-M": lambda row: (row["ListUnitPrice"] or 0) >= 0,
    "ServiceSubcategory-C-003-M": lambda row: row["ServiceCategory"] == "AI and Machine Learning",
    "SkuMeter-C-004-C": lambda row: (row["SkuMeter"] is None) == (row["SkuId"] is None),
    "SkuPriceDetails-C-004-C": lambda row: row["SkuPriceId"] is not None or row["SkuPriceDetails"] is None,
    "SkuPriceDetails-C-017-C": lambda row: all(
        key.startswith("x_") for key in json.loads(row["SkuPriceDetails"] or "{}")
    ),
    "StringHandling-A-007-M": lambda row: all((row[name] or "x").strip() for name in TEXTS),
    "UnitFormat-A-001-M": lambda row: row["PricingUnit"] is None or _UNIT.fullmatch(row["PricingUnit"]) is not None,
}


def broken(rows: Iterable[Row]) -> dict[str, Row]:
    """Of each rule that some row breaks, the first such row; and rules about all rows together.

    Rules of columns that 1.4 does not have any more hold there.
    """
    listed = [{**dict.fromkeys(GONE_IN_1_4, "gone"), **row} for row in rows]
    found: dict[str, Row] = {rule: row for rule, holds in RULES.items() for row in listed if not holds(row)}
    skus: dict[str, str] = {}
    for row in listed:
        if row["SkuPriceId"] is not None and skus.setdefault(row["SkuPriceId"], row["SkuId"]) != row["SkuId"]:
            found["SkuPriceId-C-008-M"] = row
    return found


def wrong_columns(names: list[str], version: str) -> set[str]:
    """What breaks CostAndUsage-D and ColumnHandling: missing and unknown columns, and those out of order."""
    is_1_2, is_1_4 = version == "1.2", version == "1.4"
    needed = {*MANDATORY, *(() if is_1_2 else SINCE_1_3)}
    if is_1_4:
        needed = {*(needed - set(GONE_IN_1_4)), "InvoiceId", "InvoiceDetailId"}
    own = [name for name in names if name.startswith("x_")]
    kept = [name for name in names if not name.startswith("x_")]
    pascal = re.compile(r"(x_)?([A-Z][a-z0-9]+)+")
    return {
        *(needed - set(names)),
        *(name for name in names if not pascal.fullmatch(name) or len(name) > 50),
        *(set(SINCE_1_3) & set(names) if is_1_2 else set()),
        *(set(GONE_IN_1_4) & set(names) if is_1_4 else set()),
        *(set() if is_1_4 else {"InvoiceDetailId"} & set(names)),
        *(set() if names == [*sorted(kept), *sorted(own)] else {"the order"}),
    }


DETAIL_NOT_NULL = (
    *("BilledCost", "BillingAccountId", "BillingCurrency", "BillingPeriodEnd", "BillingPeriodStart", "ChargeCategory"),
    *("InvoiceDetailCreated", "InvoiceDetailGrain", "InvoiceDetailId", "InvoiceDetailLastUpdated", "InvoiceId"),
    *("InvoiceIssueDate", "InvoiceIssueStatus", "InvoiceIssuerName", "PaymentCurrency", "PaymentTerms"),
    "ReferenceInvoiceId",
)
DETAIL_COLUMNS = {*DETAIL_NOT_NULL, "InvoiceDetailDescription", "PaymentDueDate"}
"""Those that "InvoiceDetail MUST include"."""
_GRAIN = {"RegionId", "ResourceId", "ResourceType", "ServiceName", "SkuId", "SkuMeter", "SkuPriceId", "SubAccountId"}
DETAIL_RULES: dict[str, Rule] = {
    "no column that must not be null is": lambda row: all(row[name] is not None for name in DETAIL_NOT_NULL),
    "ChargeCategory is an allowed value": lambda row: row["ChargeCategory"] in ALLOWED["ChargeCategory-C-003-M"][1],
    "InvoiceIssueStatus is an allowed value": lambda row: row["InvoiceIssueStatus"] in {"Open", "Issued", "Voided"},
    "InvoiceDetailLastUpdated is not before InvoiceDetailCreated": lambda row: (
        row["InvoiceDetailCreated"] <= row["InvoiceDetailLastUpdated"]
    ),
    "texts are not empty": lambda row: all(value.strip() for value in row.values() if isinstance(value, str)),
    "InvoiceDetailGrain is a flat object": lambda row: _is_flat_object(row["InvoiceDetailGrain"]),
    "keys of InvoiceDetailGrain are FOCUS's or begin with x_": lambda row: all(
        key in _GRAIN or key.startswith("x_") for key in json.loads(row["InvoiceDetailGrain"])
    ),
}
"""What FOCUS 1.4 says of Invoice Detail, by sentences: the ids of its model were not released when it was read."""


def broken_details(details: Iterable[Row], charges: Iterable[Row]) -> dict[str, Any]:
    """What breaks the rules of Invoice Detail, alone and beside the `charges` of Cost and Usage of the same month."""
    listed = list(details)
    found: dict[str, Any] = {rule: row for rule, holds in DETAIL_RULES.items() for row in listed if not holds(row)}
    costs: dict[tuple[str, ...], Decimal] = {}
    for row in charges:
        if (row["InvoiceId"] is None) != (row["InvoiceDetailId"] is None):
            found["InvoiceDetailId is null exactly where the charge has no invoice"] = row
        if row["InvoiceId"] is not None:
            place = row["InvoiceIssuerName"], row["InvoiceId"], row["InvoiceDetailId"]
            costs[place] = costs.get(place, Decimal(0)) + row["BilledCost"]
    for row in listed:
        place = row["InvoiceIssuerName"], row["InvoiceId"], row["InvoiceDetailId"]
        if row["BilledCost"] != costs.pop(place, Decimal(0)):
            found["the sum of BilledCost of a detail is that of Cost and Usage"] = row
    if costs:
        found["each InvoiceDetailId of Cost and Usage is one of Invoice Detail"] = costs
    if len({(row["InvoiceIssuerName"], row["InvoiceId"], row["InvoiceDetailId"]) for row in listed}) < len(listed):
        found["InvoiceDetailId is unique within an InvoiceId"] = listed
    return found


def read_csv_row(row: Mapping[str, str]) -> dict[str, Any]:
    """A row of a CSV file, typed. Raises ValueError for what breaks DateTimeFormat or NumericFormat."""
    return {name: _typed(name, value) for name, value in row.items()}


def _typed(name: str, value: str) -> Any:
    if value == "":
        return None
    if name in INSTANTS:
        return datetime.strptime(value, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    if name in COSTS or name.endswith(("Quantity", "UnitPrice")):
        if re.fullmatch(r"-?\d+(\.\d+)?", value) is None:
            raise ValueError(f"{name}: {value} is no plain number (NumericFormat-A-003-M)")
        return Decimal(value)
    # A text that a spreadsheet would run as a formula has a quote before it.
    return value[1:] if re.match(r"'[=+\-@]", value) else value
