"""Prices of a replay that the database would refuse beside those of the catalog (migrations 0043 and 0088)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jobs.billing_progress import Database

_KEY = ("plan", "model", "meter", "currency", "effective_from")
# A price of the file takes the place of the one with its key and effective_from, also where that has ended.
_PRICED = f"""
    WITH given AS (
        SELECT DISTINCT * FROM unnest(
            %(plans)s::text[], %(models)s::text[], %(meters)s::text[], %(currencys)s::text[],
            %(effective_froms)s::timestamptz[]
        ) AS of_file ({", ".join(_KEY)})
    ), priced AS (
        SELECT {", ".join(_KEY)}, 'infinity'::timestamptz AS ends, true AS is_given FROM given
        UNION ALL
        SELECT {", ".join(_KEY)}, 'infinity', false FROM catalog.prices
        UNION ALL
        SELECT {", ".join(_KEY)}, ended_at, false FROM catalog.ended_prices
        WHERE ({", ".join(_KEY)}) NOT IN (SELECT {", ".join(_KEY)} FROM given)
    )
"""
_SHARED = f"""
    {_PRICED}, lists AS (
        SELECT plan, meter, currency, split_part(model, '{{"', 1) AS listed, catalog.models_of(model) AS models,
               min(effective_from) AS begins, max(ends) AS ends, bool_or(is_given) AS is_given
        FROM priced WHERE starts_with(model, '["') GROUP BY plan, meter, currency, model
    )
    SELECT DISTINCT own.listed AS own, other.listed AS other, name
    FROM lists AS own JOIN lists AS other
      ON (own.plan, own.meter, own.currency) = (other.plan, other.meter, other.currency) AND own.listed <> other.listed
     AND greatest(own.begins, other.begins) < least(own.ends, other.ends),
         unnest(own.models) AS name
    WHERE own.is_given AND (own.listed < other.listed OR NOT other.is_given) AND name = ANY (other.models)
    ORDER BY 1, 2, 3
"""
_UNCLEAR = f"""
    {_PRICED}, alike AS (
        SELECT plan, meter, currency, left(model, strpos(model, '{{"') - 1) AS base, model,
               catalog.conditions_of(model) AS conditions,
               min(effective_from) AS begins, max(ends) AS ends, bool_or(is_given) AS is_given
        FROM priced WHERE strpos(model, '{{"') > 1 GROUP BY plan, meter, currency, model
    )
    SELECT DISTINCT one.model AS one, other.model AS other,
           catalog.price_model(base, one.conditions || other.conditions) AS missing
    FROM alike AS one JOIN alike AS other USING (plan, meter, currency, base)
    WHERE one.model < other.model AND (one.is_given OR other.is_given)
      AND greatest(one.begins, other.begins) < least(one.ends, other.ends)
      AND NOT one.conditions @> other.conditions AND NOT other.conditions @> one.conditions
      AND NOT EXISTS (
          SELECT FROM jsonb_each(one.conditions) AS a JOIN jsonb_each(other.conditions) AS b USING (key)
          WHERE a.value <> b.value
      )
      AND NOT EXISTS (
          SELECT FROM alike AS of_both
          WHERE (of_both.plan, of_both.meter, of_both.currency, of_both.base) = (plan, meter, currency, base)
            AND of_both.conditions = one.conditions || other.conditions
            AND of_both.begins <= greatest(one.begins, other.begins)
            AND of_both.ends >= least(one.ends, other.ends)
      )
    ORDER BY 1, 2
"""


def refused_prices(database: Database, prices: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line for each model in two lists at one time, and for each two prices that can both hold for an event.

    `prices`: rows with plan, model, meter, currency and effective_from, which are assumed beside those of the catalog.
    """
    given = [price for price in prices if price["model"].startswith('["') or '{"' in price["model"]]
    if not given:
        return []
    parameters = {f"{name}s": [price[name] for price in given] for name in _KEY}
    return [
        f"the prices of '{row['own']}' and '{row['other']}' are both for '{row['name']}', and neither says more: end "
        "one before the other begins (`weir catalog delete price`), or leave the model out of one"
        for row in database.execute(_SHARED, parameters).fetchall()
    ] + [
        f"the prices of '{row['one']}' and '{row['other']}' can both hold, and neither says more: a price is missing "
        f"for both, of '{row['missing']}', from the later of them on, until the first of them ends"
        for row in database.execute(_UNCLEAR, parameters).fetchall()
    ]
