"""From a seed and an instant: a catalog, records in the order of sending, and what must come of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from traffic import events
from traffic.catalog import UNPRICED_MODEL, Catalog
from traffic.drawn_catalog import make_catalog
from traffic.events import GATEWAY_OF_SECONDS, Call
from traffic.late_catalog import Late, late_changes
from traffic.malformed import KINDS, kinds
from traffic.meters import DEFAULT, Meter, PeriodMeter
from traffic.names import NAMES, with_names
from traffic.placement import Placement, UnplaceableError
from traffic.population import GATEWAYS, Population, Timeline
from traffic.scenarios import plain, told_late
from traffic.scenarios.incidents import Incident, plant
from traffic.script import Activity, Outcome, Record, Script, TakenBack
from traffic.sequences import numbered
from traffic.troubles import TROUBLES, Trouble

MALFORMED_PER_MILLE = 8
EVENTS_PER_LATE_VISIT = 2_500
BEGINNING_MS = 200
RATE = 1_500.0
"""Records a second, unless said otherwise."""


@dataclass(frozen=True)
class Traffic:
    """One run. `left_out` names the kinds of trouble whose bill is uncertain under this stack's configuration."""

    seed: int
    start_ms: int
    placement: Placement
    catalog: Catalog
    late: Late
    timeline: Timeline
    sent_before: int
    """How many of the records are those of `Beginning`: they are sent before the late changes of the catalog."""
    records: Sequence[Record]
    outcomes: Sequence[Outcome]
    activity: Sequence[Activity]
    taken_back: Sequence[TakenBack]
    left_out: Sequence[str]
    incidents: Sequence[Incident] = ()
    """What was planted for analytics to find."""


@dataclass(frozen=True)
class Beginning:
    """What is sent before the late changes of the catalog are told, and what must come of it."""

    records: Sequence[Record]
    outcomes: Sequence[Outcome]
    activity: Sequence[Activity]


def begin(*, seed: int, start_ms: int, records: int, placement: Placement, catalog: Catalog) -> Beginning:
    """The beginning of so many records: nothing, where the fate of such events is not certain."""
    rng = Random(f"beginning {seed}")
    timeline = Timeline(start_ms, BEGINNING_MS, 0)
    calls = _calls(rng, catalog, timeline, placement)
    script = Script(rng, placement, catalog, timeline, calls, knows_late=False)
    _visit_late(script, late_changes(catalog), records)
    return Beginning(_in_order(script.records), script.outcomes, script.activity)


def generate(
    *,
    seed: int,
    start_ms: int,
    records: int,
    placement: Placement,
    catalog: Catalog,
    beginning: Beginning | None = None,
    rate: float = RATE,
    has_incidents: bool = False,
) -> Traffic:
    """The same arguments give the same bytes. `start_ms`: when sending begins; `rate`: records a second.

    The catalog is that of `catalog_of` for the policy's meters, made shortly before the start. `beginning`: what was
    sent before its late changes were told, one of these records; without it no event meets them, and nobody has to tell
    them. `has_incidents`: whether incidents for analytics are planted (`scenarios.incidents`); crossings are of the
    limits that `limit_rows` has for a catalog file.

    Raises UnplaceableError when the policy leaves no room for an event whose fate is certain, or when there are too
    few records for every kind of trouble.
    """
    rng = Random(f"traffic {seed}")
    timeline = Timeline.within(start_ms, max(1_000, int(records / rate * 1000)), placement)
    _require_room(placement, timeline, catalog)
    calls = _calls(rng, catalog, timeline, placement)
    script = Script(rng, placement, catalog, timeline, calls, knows_late=True)
    played = [trouble for trouble in TROUBLES if trouble.is_certain(placement)]
    left_out = [trouble.play.__name__ for trouble in TROUBLES if trouble not in played]
    late = late_changes(catalog)
    if beginning is None or not _visit_late(script, late, records):
        left_out.append("late_catalog")
    incidents = plant(script) if has_incidents else ()
    sent_before = [] if beginning is None else beginning.records
    _play(script, played, records - len(sent_before))
    return Traffic(
        seed=seed,
        start_ms=start_ms,
        placement=placement,
        catalog=catalog,
        late=late,
        timeline=timeline,
        sent_before=len(sent_before),
        records=[*sent_before, *numbered(rng, _in_order(script.records))],
        outcomes=[*([] if beginning is None else beginning.outcomes), *script.outcomes],
        activity=[*([] if beginning is None else beginning.activity), *script.activity],
        taken_back=script.taken_back,
        left_out=left_out,
        incidents=incidents,
    )


def _visit_late(script: Script, late: Late, records: int) -> bool:
    """Events that late changes concern, if their fate is certain; whether it is."""
    is_certain = told_late.is_certain(script.placement)
    if is_certain:
        told_late.visit_all(script, late, max(1, records // EVENTS_PER_LATE_VISIT))
    return is_certain


def _in_order(records: Sequence[Record]) -> list[Record]:
    return sorted(records, key=lambda record: record.send_at_ms)


def catalog_of(
    seed: int, made_ms: int, meters: Sequence[Meter | PeriodMeter] = DEFAULT, *, knows_attributes: bool = False
) -> Catalog:
    """The catalog of a run, with prices of these meters; prices and plans change around the instant it is made.

    Where the stack `knows_attributes` some prices are for some events alone.

    Its accounts, plans and requests carry a tag of seed and instant, so that two runs never share a total.
    """
    names = tuple(meter.name for meter in meters)
    catalog = make_catalog(Random(f"catalog {seed}"), f"{seed}x{made_ms // 100:x}", made_ms, names)
    return with_names(catalog, Random(f"names {seed}"), knows_attributes=knows_attributes)


def _calls(rng: Random, catalog: Catalog, timeline: Timeline, placement: Placement) -> Iterator[Call]:
    gateways = (*GATEWAYS, GATEWAY_OF_SECONDS) if placement.policy.knows_seconds else GATEWAYS
    return Population(rng, catalog, timeline, gateways).calls()


def _play(script: Script, troubles: Sequence[Trouble], records: int) -> None:
    plays = [t.play for t in troubles for _ in range(max(t.least, int(records * t.per_mille / 1000)))]
    script.rng.shuffle(plays)
    for play in plays:
        play(script)
    _malformed(script, int(records * MALFORMED_PER_MILLE / 1000))
    if (few := len(script.records) - records) > 0:
        raise UnplaceableError(f"{few} events too few for every kind of trouble")
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
    for model in (*catalog.models, UNPRICED_MODEL, *NAMES):
        placement.apart(model)
    seconds = timeline.duration_ms // 1000 + 2 * placement.margin_seconds
    if (horizon := policy.dedupe_horizon_seconds) < seconds:
        raise UnplaceableError(f"a dedupe horizon of {horizon} s is too short, it takes {seconds} s")
