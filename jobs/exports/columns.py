"""The columns of FOCUS Cost and Usage that Weir has values for, in the order of FOCUS, and then its own (`x_…`).

FOCUS (focus.finops.org) 1.2, 1.3 and 1.4 differ in five columns. What Weir does not do has no column: all versions ask
for commitments, reservations, resources and currencies of prices only from those who have them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID, uuid5

import pyarrow as pa

from metering.instants import rfc3339

DIMENSION_PREFIX = "weir/"
"""Before the name of a dimension among the tags: keys of the provider have a prefix, those of the account none."""
_SCHEMAS = UUID("5e0f6c2e-6a53-4d52-9b5c-3d2c4d8f9a10")
"""The name space of schema ids: the same columns have the same id, other columns another."""

COST, QUANTITY, PRICE = pa.decimal128(38, 18), pa.decimal128(38, 6), pa.decimal128(38, 12)
"""A cost is quantity × price, so it has the decimals of both and is never rounded."""
INSTANT = pa.timestamp("ms", "UTC")
TEXT = pa.string()


class Focus(StrEnum):
    """Versions of FOCUS."""

    V1_2 = "1.2"
    V1_3 = "1.3"
    V1_4 = "1.4"


_OTHERWISE = {
    Focus.V1_2: frozenset(("HostProviderName", "ServiceProviderName", "InvoiceDetailId")),
    Focus.V1_3: frozenset(("InvoiceDetailId",)),
    Focus.V1_4: frozenset(("ProviderName", "PublisherName")),
}
"""The columns of other versions."""
_FOCUS = {
    "BilledCost": COST,
    "BillingAccountId": TEXT,
    "BillingAccountName": TEXT,
    "BillingCurrency": TEXT,
    "BillingPeriodEnd": INSTANT,
    "BillingPeriodStart": INSTANT,
    "ChargeCategory": TEXT,
    "ChargeClass": TEXT,
    "ChargeDescription": TEXT,
    "ChargeFrequency": TEXT,
    "ChargePeriodEnd": INSTANT,
    "ChargePeriodStart": INSTANT,
    "ConsumedQuantity": QUANTITY,
    "ConsumedUnit": TEXT,
    "ContractedCost": COST,
    "ContractedUnitPrice": PRICE,
    "EffectiveCost": COST,
    "HostProviderName": TEXT,
    "InvoiceDetailId": TEXT,
    "InvoiceId": TEXT,
    "InvoiceIssuerName": TEXT,
    "ListCost": COST,
    "ListUnitPrice": PRICE,
    "PricingCategory": TEXT,
    "PricingQuantity": QUANTITY,
    "PricingUnit": TEXT,
    "ProviderName": TEXT,
    "PublisherName": TEXT,
    "RegionId": TEXT,
    "RegionName": TEXT,
    "ServiceCategory": TEXT,
    "ServiceName": TEXT,
    "ServiceProviderName": TEXT,
    "ServiceSubcategory": TEXT,
    "SkuId": TEXT,
    "SkuMeter": TEXT,
    "SkuPriceDetails": TEXT,
    "SkuPriceId": TEXT,
    "SubAccountId": TEXT,
    "SubAccountName": TEXT,
    "Tags": TEXT,
}
_OWN = {
    "x_Corrected": pa.bool_(),
    "x_CredentialId": TEXT,
    "x_LocalDate": pa.date32(),
    "x_Model": TEXT,
    "x_OtherDimensions": pa.bool_(),
    "x_PrincipalId": TEXT,
    "x_Unpriced": pa.bool_(),
}
"""What a row is beyond FOCUS: whether it changed after its windows had closed; `api_key_id` and `user_id`, which FOCUS
1.5 will call credential and principal; the account's calendar day; the model; whether it sums up combinations of
dimensions beyond those that a day keeps; whether no price matched, so that its costs and prices are 0."""
_OF_JSON = frozenset(("InvoiceDetailGrain", "SkuPriceDetails", "Tags"))


def schema_of(focus: Focus) -> pa.Schema:
    """The columns of Cost and Usage in this version, in order."""
    kept = {name: kind for name, kind in _FOCUS.items() if name not in _OTHERWISE[focus]}
    return pa.schema([*kept.items(), *_OWN.items()])


def metadata(
    focus: Focus, schema: pa.Schema, issuer: str, created_at: datetime, known: Mapping[str, Any]
) -> dict[str, Any]:
    """The metadata of FOCUS for a file that was written at `created_at`; `known` is what else there is to say of it."""
    columns = [_definition(field) for field in schema]
    return {
        "DataGenerator": {"DataGenerator": issuer},
        "Schema": {
            "SchemaId": str(uuid5(_SCHEMAS, json.dumps([focus.value, columns]))),
            "FocusVersion": focus.value,
            "CreationDate": rfc3339(created_at),
            "ColumnDefinition": columns,
        },
        **known,
    }


def _definition(field: pa.Field) -> dict[str, Any]:
    if pa.types.is_decimal(field.type):
        size = {"NumericPrecision": field.type.precision, "NumberScale": field.type.scale}
        return {"ColumnName": field.name, "DataType": "DECIMAL", **size}
    if field.name == "Tags":
        return {"ColumnName": field.name, "DataType": "JSON", "ProviderTagPrefixes": [DIMENSION_PREFIX]}
    if field.name in _OF_JSON:
        return {"ColumnName": field.name, "DataType": "JSON"}
    if field.type == INSTANT:
        return {"ColumnName": field.name, "DataType": "DATETIME"}
    if field.type == TEXT:
        return {"ColumnName": field.name, "DataType": "STRING", "StringEncoding": "UTF-8"}
    return {"ColumnName": field.name, "DataType": {"bool": "BOOLEAN", "date32[day]": "DATE"}[str(field.type)]}
