"""From a seed and an instant: a catalog, records in the order of sending, and what must come of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from traffic import events
from traffic.catalog import UNPRICED_MODEL, Catalog, make_catalog
from traffic.malformed import KINDS, kinds
from traffic.placement import Placement, UnplaceableError
from traffic.population import Population, Timeline
from traffic.scenarios import plain
from traffic.script import Activity, Outcome, Record, Script
from traffic.sequences import numbered
from traffic.troubles import TROUBLES, Trouble

MALFORMED_PER_MILLE = 8
RATE = 1_500.0
"""Records a second, unless said otherwise."""


@dataclass(frozen=True)
class Traffic:
    """One run. `left_out` names the kinds of trouble that this stack's configuration cannot judge."""

    seed: int
    start_ms: int
    placement: Placement
    catalog: Catalog
    timeline: Timeline
    records: Sequence[Record]
    outcomes: Sequence[Outcome]
    activity: Sequence[Activity]
    left_out: Sequence[str]


def generate(
    *, seed: int, start_ms: int, records: int, placement: Placement, catalog: Catalog, rate: float = RATE
) -> Traffic:
    """The same arguments give the same bytes. `start_ms`: when sending begins; `rate`: records a second.

    The catalog is that of `catalog_of`, made shortly before the start.

    Raises UnplaceableError when the policy leaves no room for an event whose fate is certain, or when there are too
    few records for every kind of trouble.
    """
    rng = Random(f"traffic {seed}")
    timeline = Timeline.within(start_ms, max(1_000, int(records / rate * 1000)), placement)
    _require_room(placement, timeline, catalog)
    script = Script(rng, placement, catalog, timeline, Population(rng, catalog, timeline).calls())
    played = [trouble for trouble in TROUBLES if trouble.can_be_judged(placement)]
    _play(script, played, records)
    return Traffic(
        seed=seed,
        start_ms=start_ms,
        placement=placement,
        catalog=catalog,
        timeline=timeline,
        records=numbered(rng, sorted(script.records, key=lambda record: record.send_at_ms)),
        outcomes=script.outcomes,
        activity=script.activity,
        left_out=[t.play.__name__ for t in TROUBLES if t not in played],
    )


def catalog_of(seed: int, made_ms: int) -> Catalog:
    """The catalog of a run, whose prices and plans change around the instant it is made.

    Its accounts, plans and requests carry a tag of seed and instant, so that two runs never share a total.
    """
    return make_catalog(Random(f"catalog {seed}"), f"{seed}x{made_ms // 100:x}", made_ms)


def _play(script: Script, troubles: Sequence[Trouble], records: int) -> None:
    plays = [t.play for t in troubles for _ in range(max(t.least, int(records * t.per_mille / 1000)))]
    script.rng.shuffle(plays)
    for play in plays:
        play(script)
    _malformed(script, int(records * MALFORMED_PER_MILLE / 1000))
    missing = records - len(script.records)
    if missing < 0:
        least = len(script.records)
        raise UnplaceableError(f"{records} events are too few for every kind of trouble: at least {least}")
    while len(script.records) < records - 1:
        plain.normal(script)
    if len(script.records) < records:
        plain.single(script, script.take(), "normal")


def _malformed(script: Script, count: int) -> None:
    every = kinds()
    for number in range(max(count, 2 * len(KINDS))):
        name, damage = next(every)
        call = script.take()
        document = events.usage(call)
        at_ms = script.timeline.sent_at(call.ended_ms)
        key = call.account.encode() if number % 3 else None
        script.send_damaged(damage(document), key, at_ms, f"malformed_{name}")


def _require_room(placement: Placement, timeline: Timeline, catalog: Catalog) -> None:
    policy = placement.policy
    placement.included(alone=True)
    for model in (*catalog.models, UNPRICED_MODEL):
        placement.apart(model)
    seconds = timeline.duration_ms // 1000 + 2 * placement.margin_seconds
    if (horizon := policy.dedupe_horizon_seconds) < seconds:
        raise UnplaceableError(f"a dedupe horizon of {horizon} s is too short, it takes {seconds} s")
