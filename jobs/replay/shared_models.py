"""Prices for several models that share one: refused as the database refuses them (migration 0088)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jobs.billing_progress import Database

_KEY = ("plan", "model", "meter", "currency", "effective_from")
# A price of the file takes the place of the one with its key and effective_from, also where that has ended.
_SHARED = f"""
    WITH given AS (
        SELECT DISTINCT * FROM unnest(
            %(plans)s::text[], %(models)s::text[], %(meters)s::text[], %(currencys)s::text[],
            %(effective_froms)s::timestamptz[]
        ) AS of_file ({", ".join(_KEY)})
    ), lists AS (
        SELECT plan, meter, currency, split_part(model, '{{"', 1) AS listed, catalog.models_of(model) AS models,
               min(effective_from) AS begins, max(ends) AS ends, bool_or(is_given) AS is_given
        FROM (
            SELECT {", ".join(_KEY)}, 'infinity'::timestamptz AS ends, true AS is_given FROM given
            UNION ALL
            SELECT {", ".join(_KEY)}, 'infinity', false FROM catalog.prices
            UNION ALL
            SELECT {", ".join(_KEY)}, ended_at, false FROM catalog.ended_prices
            WHERE ({", ".join(_KEY)}) NOT IN (SELECT {", ".join(_KEY)} FROM given)
        ) AS priced
        WHERE starts_with(model, '["') GROUP BY plan, meter, currency, model
    )
    SELECT DISTINCT own.listed AS own, other.listed AS other, name
    FROM lists AS own JOIN lists AS other
      ON (own.plan, own.meter, own.currency) = (other.plan, other.meter, other.currency) AND own.listed <> other.listed
     AND greatest(own.begins, other.begins) < least(own.ends, other.ends),
         unnest(own.models) AS name
    WHERE own.is_given AND (own.listed < other.listed OR NOT other.is_given) AND name = ANY (other.models)
    ORDER BY 1, 2, 3
"""


def shared_models(database: Database, prices: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line for each model that is in two lists at one time, of one plan, meter and currency.

    `prices`: rows with plan, model, meter, currency and effective_from, which are assumed beside those of the catalog.
    """
    listed = [price for price in prices if price["model"].startswith('["')]
    if not listed:
        return []
    parameters = {f"{name}s": [price[name] for price in listed] for name in _KEY}
    return [
        f"the prices of '{row['own']}' and '{row['other']}' are both for '{row['name']}', and neither says more: end "
        "one before the other begins (`weir catalog delete price`), or leave the model out of one"
        for row in database.execute(_SHARED, parameters).fetchall()
    ]
