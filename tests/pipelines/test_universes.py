"""A universe of reports, reversals, prices and aliases bills after an audit what a few lines of Python say of it.

Retries, routers that fall back, partial and null counts, repeats, sources that count parts beside the whole, reversals
before and after, prices and aliases that are told late: received in any order, cut and audited anywhere. The model
knows sets of events, and uses no code of the applications.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st

from jobs.audit.recompute.basis import Scope, pin
from jobs.replay.assumptions import Assumptions
from jobs.replay.usage import Tables, replayed
from jobs.runtime.delta.table import open_table
from jobs.streams import Table
from metering.price_models import PricedModel
from tests.pipelines.as_billed import Stack
from tests.pipelines.hand_made import DAY, HOUR, MINUTE, START
from tests.pipelines.sent import COMPLETION, MILLION, REQUEST, REVERSAL, USAGE, Sent
from tests.pipelines.test_audit_restated import audited

STACK = Stack(conventions=({"source": "beside/*", "includes": {}},), price_attributes=("operation",))
WHOLES = {"cached_tokens": "input_tokens", "cache_write_tokens": "input_tokens", "reasoning_tokens": "output_tokens"}
COUNTS = ("input_tokens", "output_tokens", *WHOLES)
NAMES = ("alpha", "beta", "latest", "newest")
"""Models that events name; the last two have no price of their own, but may be aliases."""
STATUS = {"completed": 3, "cancelled": 2, "error": 1}
SOURCE = {None: 3, "provider": 3, "estimated": 2, "partial": 1}
MIDDAY = 300
"""The minute from which the later prices and aliases hold; events occur before and after it."""


@dataclass(frozen=True)
class Event:
    """What occurred at a minute that no other event of the universe has, of one of a few requests."""

    kind: str
    request: int
    minute: int
    model: str | None = None
    operation: str | None = None
    status: str = "completed"
    counted_by: str | None = None
    counts: tuple[tuple[str, int], ...] = ()
    is_beside: bool = False
    meter: str | None = None
    quantity: int | None = None

    @property
    def is_report(self) -> bool:
        return self.kind in (USAGE, COMPLETION)

    @property
    def is_consistent(self) -> bool:
        """Whether it has no more parts than the whole, where it counts them within it."""
        said = dict(self.counts)
        return self.is_beside or all(
            said[whole] >= sum(said.get(part, 0) for part, of in WHOLES.items() if of == whole)
            for whole in set(WHOLES.values()) & said.keys()
        )

    @property
    def data(self) -> dict[str, Any]:
        said: dict[str, Any] = {"request_id": f"r{self.request}", "model": self.model, "operation": self.operation}
        if self.is_report:
            said |= {"status": self.status, "usage_source": self.counted_by, **dict(self.counts)}
        if self.kind == REVERSAL:
            said |= {"reason": "a dispute", "meter": self.meter, "quantity": self.quantity}
        return {name: value for name, value in said.items() if value is not None}


@dataclass(frozen=True)
class Price:
    """What a million of a meter costs a model, from a minute on; `operation`: such events only; told early or late."""

    model: str
    meter: str
    minute: int
    amount: int
    operation: str | None = None
    is_late: bool = False


@dataclass(frozen=True)
class Alias:
    """A name has the prices of a model from a minute on."""

    name: str
    model: str
    minute: int
    is_late: bool = False


@dataclass(frozen=True)
class Universe:
    """Events in the order of receipt, with which of them come twice; after which ones joins and an audit look."""

    events: tuple[Event, ...]
    repeated: frozenset[int]
    looked: Mapping[int, bool]
    prices: tuple[Price, ...]
    aliases: tuple[Alias, ...]


counts = st.dictionaries(st.sampled_from(COUNTS), st.sampled_from([0, 1, 7, 60, 1_000]), max_size=5).map(
    lambda found: tuple(sorted(found.items()))
)
requests = st.integers(0, 1)
operations = st.sampled_from([None, None, "batch", "chat"])
models = st.sampled_from((*NAMES, "latest", "latest", "latest", "latest"))
reports = st.builds(
    Event,
    kind=st.just(USAGE),
    request=requests,
    minute=st.just(0),
    model=models,
    operation=operations,
    status=st.sampled_from(["completed", "completed", *STATUS]),
    counted_by=st.sampled_from([None, *SOURCE]),
    counts=counts,
    is_beside=st.booleans(),
)
completions = reports.map(lambda event: replace(event, kind=COMPLETION, model=None, operation=None))
asked = st.builds(Event, kind=st.just(REQUEST), request=requests, minute=st.just(0), model=models, operation=operations)
whole_reversals = st.builds(Event, kind=st.just(REVERSAL), request=requests, minute=st.just(0))
credits_given = st.builds(
    Event,
    kind=st.just(REVERSAL),
    request=requests,
    minute=st.just(0),
    meter=st.sampled_from(["requests", *COUNTS]),
    quantity=st.sampled_from([None, 1, 30, 2_000]),
)
kinds = st.one_of(reports, reports, reports, completions, asked, credits_given, whole_reversals)
prices = st.builds(
    Price,
    model=st.sampled_from(["alpha", "beta"]),
    meter=st.sampled_from(["requests", *COUNTS, *COUNTS]),
    minute=st.sampled_from([0, MIDDAY]),
    amount=st.integers(0, 9_000_000),
    operation=st.sampled_from([None, None, "batch"]),
    is_late=st.booleans(),
)
aliases = st.builds(
    Alias,
    name=st.sampled_from(["latest", "latest", "latest", "newest"]),
    model=st.sampled_from(["alpha", "alpha", "beta", "beta", "newest"]),
    minute=st.sampled_from([0, MIDDAY]),
    is_late=st.booleans(),
).filter(lambda alias: alias.name != alias.model)


PLAIN = tuple((model, meter) for model in ("alpha", "beta") for meter in ("input_tokens", "output_tokens"))
"""Half of the universes have prices of these from the beginning."""


def key_of(price: Price) -> tuple[str, str, int, str | None]:
    return price.model, price.meter, price.minute, price.operation


@st.composite
def universes(draw: st.DrawFn) -> Universe:
    drawn = draw(st.lists(kinds, min_size=1, max_size=7))
    minutes = draw(st.lists(st.integers(1, 2 * MIDDAY), min_size=len(drawn), max_size=len(drawn), unique=True))
    events = tuple(replace(event, minute=minute) for event, minute in zip(drawn, minutes, strict=True))
    places = st.integers(0, len(events) - 1)
    told = draw(st.lists(prices, max_size=10, unique_by=key_of))
    plain = [Price(model, meter, 0, 1_000_000 * (1 + number)) for number, (model, meter) in enumerate(PLAIN)]
    if draw(st.booleans()):
        told += [price for price in plain if (price.model, price.meter, 0, None) not in {key_of(each) for each in told}]
    moves = [Alias("latest", "alpha", 0), Alias("latest", "beta", MIDDAY, is_late=draw(st.booleans()))]
    named = draw(st.lists(aliases, max_size=4, unique_by=lambda alias: (alias.name, alias.minute)) | st.just(moves))
    return Universe(
        events,
        draw(st.frozensets(places, max_size=2)),
        draw(st.dictionaries(places, st.booleans(), max_size=3)),
        tuple(told),
        tuple(named),
    )


def price_of(universe: Universe, model: str | None, meter: str, minute: int, operation: str | None) -> int | None:
    """What a million costs: of the model itself, else of the one that it is an alias of then."""
    begun = [alias for alias in universe.aliases if alias.name == model and alias.minute <= minute]
    latest = max(begun, key=lambda alias: alias.minute, default=None)
    for name in (model, None if latest is None else latest.model):
        for said in dict.fromkeys((operation, None)):
            held = [
                price
                for price in universe.prices
                if (price.model, price.meter, price.operation) == (name, meter, said) and price.minute <= minute
            ]
            if held:
                return max(held, key=lambda price: price.minute).amount
    return None


def best_of(reported: Sequence[Event]) -> Event:
    def worth(event: Event) -> tuple[int, int, bool, int]:
        return STATUS[event.status], SOURCE[event.counted_by], bool(event.counts), event.minute

    return max(reported, key=worth)


def answered(best: Event, group: Sequence[Event]) -> Event | None:
    """The request that a report answers: the latest received before it, else the earliest after it."""
    requests_of = [event for event in group if event.kind == REQUEST]
    if not requests_of:
        if best.kind == USAGE:
            return best
        requests_of = [event for event in group if event.kind == USAGE]
    before = [event for event in requests_of if group.index(event) <= group.index(best)]
    return before[-1] if before else next(iter(requests_of), None)


def must_bill(universe: Universe) -> tuple[dict[str, Decimal], dict[str, int]]:
    """By meter what it costs, and how many units have no price."""
    costs: defaultdict[str, Decimal] = defaultdict(Decimal)
    unpriced: defaultdict[str, int] = defaultdict(int)
    for request in {event.request for event in universe.events}:
        of_request = [event for event in universe.events if event.request == request and event.is_consistent]
        reported = [event for event in of_request if event.is_report]
        taken = [event for event in of_request if event.kind == REVERSAL]
        if not reported or any(event.meter is None for event in taken):
            continue
        best = best_of(reported)
        asked_for = answered(best, [event for event in of_request if event.kind != REVERSAL])
        said = best.model if best.kind == USAGE or asked_for is None else asked_for.model
        operation = best.operation or (None if asked_for is None else asked_for.operation)
        for meter, units, price in entries(universe, best, said, operation, is_orphan=asked_for is None):
            gone = [event.quantity for event in taken if event.meter == meter]
            left = 0 if None in gone else max(0, units - sum(each or 0 for each in gone))
            if price is None:
                unpriced[meter] += left
            else:
                costs[meter] += left * price / MILLION
    return {meter: cost for meter, cost in costs.items() if cost}, {m: many for m, many in unpriced.items() if many}


def entries(
    universe: Universe, best: Event, model: str | None, operation: str | None, *, is_orphan: bool
) -> Iterator[tuple[str, int, int | None]]:
    """Each meter with the units that it bills by itself, and their price; of an orphan nothing has a price."""
    counted = dict(best.counts)
    units = {
        meter: None if is_orphan else price_of(universe, model, meter, best.minute, operation)
        for meter in ("requests", *counted)
    }
    if best.status in ("completed", "cancelled") and not is_orphan:
        yield "requests", 1, units["requests"]
    for meter, quantity in counted.items():
        if (whole := WHOLES.get(meter)) is not None:
            is_within = not best.is_beside and counted.get(whole, 0) > 0
            if not is_within or units[meter] is not None:
                yield meter, quantity, units[meter]
            continue
        inside = [part for part, of in WHOLES.items() if of == meter and units.get(part) is not None]
        parts = 0 if best.is_beside else sum(counted[part] for part in inside)
        yield meter, quantity - parts, units[meter]


def tell(sent: Sent, universe: Universe, at: timedelta, *, is_late: bool) -> None:
    """The prices and aliases that are known then."""
    for price in universe.prices:
        if price.is_late == is_late:
            conditions = {} if price.operation is None else {"operation": price.operation}
            model, amount = PricedModel.of(price.model, conditions).text, f"{price.amount / MILLION:f}"
            sent.price(at, amount, begins=price.minute * MINUTE, model=model, meter=price.meter)
    for alias in universe.aliases:
        if alias.is_late == is_late:
            sent.alias(at, alias.name, alias.model, begins=alias.minute * MINUTE)


def happens(sent: Sent, universe: Universe) -> None:
    tell(sent, universe, timedelta(), is_late=False)
    at = DAY
    for number, event in enumerate(universe.events):
        at += 20 * MINUTE
        source = "desk" if event.kind == REVERSAL else f"{'beside' if event.is_beside else 'inside'}/1"
        for again in range(1 + (number in universe.repeated)):
            occurred, moment = event.minute * MINUTE, at + again * MINUTE
            said = sent.send(moment, event.data, kind=event.kind, name=f"e{number}", source=source, occurred=occurred)
            assert (said is None) == event.is_consistent, said
        if number in universe.looked:
            sent.joined(at + 2 * MINUTE)
            if universe.looked[number]:
                audited(sent, at + 2 * MINUTE, sent.present)
    sent.joined(at + HOUR)
    tell(sent, universe, at + HOUR, is_late=True)
    sent.joined(at + 2 * HOUR)
    audited(sent, at + 2 * HOUR, sent.present)


@pytest.mark.long
@pytest.mark.timeout(1_200)
@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(universes())
def test_any_universe_bills_after_an_audit_what_the_model_says(universe: Universe) -> None:
    assert_bills(universe)


@settings(max_examples=4, suppress_health_check=[HealthCheck.too_slow])
@given(universes())
def test_a_few_universes_bill_after_an_audit_what_the_model_says(universe: Universe) -> None:
    assert_bills(universe)


def priced_by(universe: Universe, told: Iterator[Price]) -> Universe:
    return replace(universe, prices=tuple(told))


def having(universe: Universe, events: Iterator[Event]) -> Universe:
    return replace(universe, events=tuple(events))


LESSER = ("partial", "estimated")
WITHOUT: Mapping[str, Callable[[Universe], Universe]] = {
    "aliases": lambda all_: replace(all_, aliases=()),
    "late prices": lambda all_: priced_by(all_, (price for price in all_.prices if not price.is_late)),
    "conditions": lambda all_: priced_by(all_, (price for price in all_.prices if price.operation is None)),
    "reversals": lambda all_: having(all_, (event for event in all_.events if event.kind != REVERSAL)),
    "retries": lambda all_: having(all_, (event for event in all_.events if event.status == "completed")),
    "partial counts": lambda all_: having(all_, (event for event in all_.events if event.counted_by not in LESSER)),
    "requests": lambda all_: having(all_, (event for event in all_.events if event.kind != REQUEST)),
    "counts beside the whole": lambda all_: having(all_, (replace(event, is_beside=False) for event in all_.events)),
}
"""The same universe where one kind of thing never was."""


@pytest.mark.long
@pytest.mark.parametrize("without", WITHOUT.values(), ids=WITHOUT)
def test_each_kind_of_thing_decides_what_some_universe_costs(without: Callable[[Universe], Universe]) -> None:
    """Else a universe would say nothing of it."""
    first = settings(
        max_examples=5_000, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
    )
    find(universes(), lambda universe: must_bill(universe)[0] != must_bill(without(universe))[0], settings=first)


def replayed_costs(sent: Sent) -> dict[str, Decimal]:
    """By meter what a replay of the journal would bill by the rules and prices that there are."""
    usage, journal = (open_table(sent.tables, table) for table in (Table.USAGE, Table.JOURNAL))
    assert usage is not None
    assert journal is not None
    live = pin(usage, [], sent.tables, sent.present, Scope())
    costs: defaultdict[str, Decimal] = defaultdict(Decimal)
    for part in replayed(Tables(journal, usage, START.date()), live, Assumptions().pinned(live)):
        for row in part.to_pylist():
            for entry in row["meters"]:
                costs[entry["meter"]] += row["sign"] * (entry["amount"] or 0)
    return {meter: cost for meter, cost in costs.items() if cost}


def assert_bills(universe: Universe) -> None:
    with tempfile.TemporaryDirectory() as folder:
        sent = Sent(Path(folder), STACK, {}, reversal={"sources": ["desk"]})
        happens(sent, universe)
        costs, unpriced = must_bill(universe)
        assert {meter: amount for meter, (_, amount) in sent.bill().items() if amount} == costs
        assert sent.unpriced == unpriced
        assert replayed_costs(sent) == costs
        assert audited(sent, 4 * DAY, sent.present) == 0
