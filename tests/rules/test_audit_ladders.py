"""What the audit says of `price_ladders`, by which bills price tiers and packages."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from jobs.audit.bills.ladders import StoredLadders, wrong_ladders
from jobs.joins.price_ladders import ladders, refuse_period_tiers
from jobs.runtime.errors import Refused
from jobs.streams import PRICES
from metering.meters import Declaration
from metering.period_meters import Aggregation, Period, PeriodMeter
from metering.plan_terms import PLAN_METER, PLAN_MODEL, PlanTerms
from metering.price_tiers import PriceTerms

SINCE = datetime(2026, 1, 1, tzinfo=UTC)
NOW, LATE = datetime(2026, 3, 1, tzinfo=UTC), timedelta(days=3)
TERMS = PriceTerms.of({"kind": "volume", "tiers": [{"unit_price": "2"}]}).text


def price(lsn: int, **other: Any) -> dict[str, Any]:
    key = {"plan": "p", "model": "m*", "meter": "tokens", "currency": "EUR", "effective_from": SINCE}
    return {"lsn": lsn, **key, "unit_price": None, "terms": TERMS, "deleted": False, **other}


def table(*rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=PRICES)


EVERY = table(
    price(1, unit_price=Decimal(3), terms=None),
    price(2),
    price(3, unit_price=None, terms=None, deleted=True),
    price(4, model="other", unit_price=Decimal(5), terms=None),
)
STORED = {version: tuple(rest) for version, *rest in ladders(EVERY).iter_rows()}


def test_a_ladder_has_every_version_of_a_price_that_ever_had_terms_and_no_other_price() -> None:
    assert [(version, rung[-2], rung[-1]) for version, rung in STORED.items()] == [(1, 3, None), (2, None, TERMS)]


def test_where_a_plan_has_or_had_terms_the_table_has_every_version_of_every_price() -> None:
    terms = PlanTerms.of({"kind": "plan", "flat_fee": "5"}).text
    ended = table(*EVERY.to_pylist(), price(5, model=PLAN_MODEL, terms=terms), price(6, model=PLAN_MODEL, deleted=True))
    assert [version for version, *_ in ladders(ended).iter_rows()] == [1, 2, 4, 5]


def test_what_prices_say_is_sound_and_versions_of_later_prices_may_be_there() -> None:
    later = {**STORED, 9: STORED[2]}
    assert wrong_ladders(StoredLadders(later, [2, 9]), EVERY).found == 0


def test_a_tier_that_somebody_has_changed_in_the_database_is_named() -> None:
    changed = (*STORED[2][:-1], TERMS.replace("2", "1"))
    found = wrong_ladders(StoredLadders({**STORED, 2: changed}, [2]), EVERY)
    assert (found.found, found.first.startswith("price version 2 is p m* tokens EUR")) == (1, True)


def test_a_version_that_bills_usage_and_is_missing_is_named() -> None:
    found = wrong_ladders(StoredLadders({1: STORED[1]}, [2]), EVERY)
    assert (found.found, "price version 2" in found.first) == (1, True)


def test_a_meter_of_whole_periods_with_tiers_is_refused_by_joins() -> None:
    declared = [Declaration("tokens", "token", of_period=PeriodMeter(Aggregation.MAX, "gigabytes", Period.DAY))]
    with pytest.raises(Refused, match="the meter tokens bills whole periods"):
        refuse_period_tiers(EVERY, declared, NOW, LATE)
    refuse_period_tiers(EVERY, [Declaration("tokens", "token")], NOW, LATE)


def test_terms_of_a_plan_are_no_tiers_of_the_meter_that_their_row_names() -> None:
    declared = [Declaration(PLAN_METER, "request", of_period=PeriodMeter(Aggregation.MAX, "gigabytes", Period.DAY))]
    terms = PlanTerms.of({"kind": "plan", "flat_fee": "5"}).text
    refuse_period_tiers(table(price(7, model=PLAN_MODEL, meter=PLAN_METER, terms=terms)), declared, NOW, LATE)


def test_a_meter_of_whole_periods_may_have_had_tiers_that_a_unit_price_replaced() -> None:
    """What the refusal asks for is enough: no version is ever removed."""
    declared = [Declaration("tokens", "token", of_period=PeriodMeter(Aggregation.MAX, "gigabytes", Period.DAY))]
    replaced, follows = price(2, unit_price=Decimal(3), terms=None), SINCE + timedelta(days=1)
    refuse_period_tiers(table(price(1), replaced), declared, NOW, LATE)
    refuse_period_tiers(table(price(1), {**replaced, "effective_from": follows}), declared, NOW, LATE)
    ended = price(2, terms=None, deleted=True, ends_at=follows)
    refuse_period_tiers(table(price(1), ended), declared, NOW, LATE)
    with pytest.raises(Refused, match="the meter tokens bills whole periods"):
        refuse_period_tiers(table(price(1), {**ended, "ends_at": NOW}), declared, NOW, LATE)
