"""Histories: what a seed draws, step by step."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

from jobs.streams import Table
from metering.instants import rfc3339
from tests.simulation.applications import JOBS
from tests.simulation.calls import COMMIT, Fault
from tests.simulation.declared import ALL_METERS, CONDITIONAL, CONTRACTS, COUNTED_ONCE, DECLARED, DESK, OTHER
from tests.simulation.dimensions import with_dimensions
from tests.simulation.steps import (
    ENOUGH,
    AddPartition,
    Audit,
    Backfill,
    Compact,
    Configure,
    CutLog,
    Decide,
    Declare,
    Double,
    Exchange,
    Name,
    Pass,
    Publish,
    Rebuild,
    Replay,
    Retain,
    Reverse,
    Run,
    Send,
    Step,
    Wake,
)
from tests.simulation.topics import with_topics
from tests.simulation.world import START

Draw = Callable[[random.Random], list[Step]]


def drawn(seed: int) -> tuple[int, list[Step]]:
    """Partitions at the beginning, and the steps. Each seed has some kinds of steps more often than others."""
    chance = random.Random(seed)
    weights = {draw: weight * chance.choice([0, 1, 1, 3]) for draw, weight in DRAWS.items()}
    weights[_send] = max(weights[_send], 10)
    weights[_run] = max(weights[_run], 10)
    steps = _catalog() if chance.random() < 0.7 else []
    steps += [step for _ in range(chance.randrange(5)) for step in _publish(chance)]
    steps += [_chunk(chance, job) for job in JOBS if chance.random() < 0.4]
    steps += _configure(chance) if chance.random() < 0.2 else []
    for _ in range(chance.randint(4, 14)):
        steps += chance.choices(list(weights), list(weights.values()))[0](chance)
    audited = _with_audits(random.Random(f"{seed} audits"), steps)
    partitions = chance.randint(1, 3)
    replayed = _with_replays(seed, audited) if seed % 3 == 2 else audited
    replayed = _with_history(random.Random(f"{seed} history"), replayed) if seed % 5 == 3 else replayed
    replayed = _with_redriven(random.Random(f"{seed} redriven"), replayed) if seed % 6 == 5 else replayed
    decided = _with_decisions(random.Random(f"{seed} holds"), replayed)
    contracted = _with_contract(random.Random(f"{seed} contract"), decided) if seed % 4 == 2 else decided
    named = with_dimensions(random.Random(f"{seed} dimensions"), contracted) if seed % 7 == 4 else contracted
    # Histories of lower seeds are known by what they end in.
    is_ranked, is_conditional = (seed >= 100 and seed % 3 == rest for rest in (1, 2))
    reported = _with_reports(random.Random(f"{seed} reports"), named) if is_ranked else named
    asked = _with_conditions(random.Random(f"{seed} conditions"), reported) if is_conditional else reported
    is_once = seed >= 100 and seed % 3 != 2 and seed % 2 == 0
    once = _with_contents(random.Random(f"{seed} contents"), asked) if is_once else asked
    is_named = seed >= 200 and seed % 4 == 3
    aliased = _with_aliases(random.Random(f"{seed} aliases"), once) if is_named else once
    is_reversed = seed >= 100 and seed % 5 in (1, 4)
    # Who may reverse is configured before anything comes: until then ingestion does not know the type.
    taken = _with_reversals(random.Random(f"{seed} reversals"), aliased) if is_reversed else aliased
    rebuilt = _with_rebuilds(random.Random(f"{seed} rebuilds"), taken)
    is_spread = seed >= 300 and seed % 4 == 1
    return partitions, with_topics(random.Random(f"{seed} topics"), rebuilt) if is_spread else rebuilt


ALIASES = (("slow", "fast"), ("slow", "fast"), ("slow", "dear"), ("fast", "dear"), ("dear", "fast"))
"""Names, and the models whose prices they have. Requests name "slow", which has no price of its own, and "fast"."""


def _with_aliases(chance: random.Random, steps: list[Step]) -> list[Step]:
    """Names have the prices of models: from before the beginning or later on, told before the usage or after it.

    They move to another model, end, and begin again; what they name has prices for some meters, or an alias itself.
    """
    for _ in range(chance.randint(2, 7)):
        plan, (name, model) = chance.choice([0, 0, 0, 1]), chance.choice(ALIASES)
        told = Name(plan, name, model, chance.choice([-90_000, -90_000, 0, 60, 600, 3_600, 90_000]))
        made: list[Step] = [told]
        if chance.random() < 0.5:
            meters = chance.sample(ALL_METERS, 3)
            from_s = chance.choice([None, -3_600, -90_000])
            made += [Publish(each, plan, "EUR", chance.randrange(1_000), from_s, model="dear") for each in meters]
        made += [replace(_sent(chance, "usage"), request=3 * chance.randrange(2)) for _ in range(chance.randrange(3))]
        if chance.random() < 0.3:
            made += [*_pass(chance), replace(told, deleted=True)]
            made += [*_pass(chance), told] if chance.random() < 0.4 else []
        made += [Pass(chance.choice([1, 1_801]), ALL), *_round(chance), Audit()] if chance.random() < 0.5 else []
        at = chance.choice([0, chance.randint(0, len(steps)), len(steps)])
        steps = [*steps[:at], *made, *steps[at:]]
    return steps


def _with_reversals(chance: random.Random, steps: list[Step]) -> list[Step]:
    """Requests are taken back, whole or in part, before they come, meanwhile and after an audit."""
    for _ in range(chance.randint(1, 5)):
        sent = [at for at, step in enumerate(steps) if isinstance(step, Send)]
        near = steps[chance.choice(sent)] if sent and chance.random() < 0.8 else _sent(chance, "request")
        assert isinstance(near, Send)
        meter = chance.choice([None, None, "requests", "output_tokens", "input_tokens", "cached_tokens"])
        quantity = None if meter is None else chance.choice([None, 1, 2.5, 7, 10**10])
        made: list[Step] = [Reverse(chance.randrange(4), near.account, near.request, meter, quantity)]
        made += [replace(_sent(chance, "again"), again=-1)] if chance.random() < 0.2 else []
        made += [*_round(chance), Audit()] if chance.random() < 0.4 else []
        at = chance.randint(0, len(steps))
        steps = [*steps[:at], *made, *steps[at:]]
    return [Configure("ingestion", "reversal", {"sources": [DESK]}), *steps]


def _with_reports(chance: random.Random, steps: list[Step]) -> list[Step]:
    """The best report of a request bills, mostly from the beginning on; many reports are lesser ones."""
    statuses, sources = ["completed", "completed", "cancelled", "error"], [None, None, None, "estimated", "partial"]
    steps = [
        replace(step, status=chance.choice(statuses), usage_source=chance.choice(sources))
        if isinstance(step, Send)
        else step
        for step in steps
    ]
    at = chance.choice([0, 0, 0, chance.randint(0, len(steps))])
    return [*steps[:at], Configure("joins", "best_report_bills", True), *steps[at:]]


def _with_conditions(chance: random.Random, steps: list[Step]) -> list[Step]:
    """Some meters look at some outcomes, from anywhere on and now and then at others; events say what they ask for."""
    statuses, regions = ["completed", "completed", "cancelled", "error"], [None, "eu", "us", "ap"]
    made: list[Step] = []
    for step in steps:
        if chance.random() < 0.12:
            jobs = chance.sample(list(JOBS), chance.randint(1, len(JOBS)))
            made += [Declare(chance.choice(CONDITIONAL)), *[Run(job, 0, Fault.CRASH) for job in jobs]]
        if not isinstance(step, Send):
            made.append(step)
            continue
        cached = chance.choice([None, True, False])
        made.append(replace(step, status=chance.choice(statuses), region=chance.choice(regions), cached=cached))
    return made


def _with_contents(chance: random.Random, steps: list[Step]) -> list[Step]:
    """Meters count each content once, from anywhere on; few contents are said by many events."""
    made = [
        replace(step, region=chance.choice([None, "eu", "eu", "eu"])) if isinstance(step, Send) else step
        for step in steps
    ]
    for _ in range(chance.randint(1, 2)):
        at = chance.choice([0, chance.randint(0, len(made))])
        jobs = chance.sample(list(JOBS), len(JOBS))
        starts = [Run(job, 0, Fault.CRASH) for job in jobs]
        made = [*made[:at], Declare(chance.choice(list(COUNTED_ONCE))), *starts, *made[at:]]
    return made


def _with_rebuilds(chance: random.Random, steps: list[Step]) -> list[Step]:
    """In a quarter of all histories billing's tables are made again, once or twice."""
    for _ in range(chance.choice([0, 0, 0, 0, 0, 0, 1, 2])):
        place = chance.randint(len(steps) // 3, len(steps))
        steps = [*steps[:place], Rebuild(chance.random() < 0.7), *steps[place:]]
    return steps


def _with_decisions(chance: random.Random, steps: list[Step]) -> list[Step]:
    """In a third of all histories something waits, wherever that comes."""
    place = chance.randint(0, len(steps))
    return [*steps[:place], *_decide(chance), *steps[place:]] if chance.random() < 1 / 3 else steps


def _with_contract(chance: random.Random, steps: list[Step]) -> list[Step]:
    """A contract comes for events that there were without one, and goes, and comes again; some are sent again."""
    for _ in range(chance.randint(1, 3)):
        at = chance.randint(0, len(steps))
        steps = [*steps[:at], *_contract(chance), *steps[at:]]
    return steps


def _with_replays(seed: int, steps: list[Step]) -> list[Step]:
    """The same with dead letters that come back in between; all other seeds are the histories that they were before."""
    chance = random.Random(f"{seed} replays")
    for _ in range(chance.randint(1, 3)):
        at = chance.randint(0, len(steps))
        steps = [*steps[:at], *_replay(chance), *steps[at:]]
    return steps


def _with_redriven(chance: random.Random, steps: list[Step]) -> list[Step]:
    """The same with requests of which one part was a dead letter, and comes back when the other was given up."""
    for _ in range(chance.randint(1, 3)):
        at = chance.randint(0, len(steps))
        steps = [*steps[:at], *_redriven(chance), *steps[at:]]
    return steps


def _with_history(chance: random.Random, steps: list[Step]) -> list[Step]:
    """The same with events of the past, before, between and after the others, some of them twice, under any rules."""
    if chance.random() < 0.5:
        until = rfc3339(START - timedelta(days=chance.choice([0, 1, 100])))
        steps = [Configure("billing", "history_until", until), *steps]
        if chance.random() < 0.5:
            at = chance.randint(1, len(steps))
            steps = [
                *steps[:at],
                Configure("billing", "history_until", None),
                Run("billing", 0, Fault.CRASH),
                *steps[at:],
            ]
    for _ in range(chance.randint(1, 4)):
        at = chance.randint(0, len(steps))
        steps = [*steps[:at], *_backfill(chance), *steps[at:]]
    return steps


def _backfill(chance: random.Random) -> list[Step]:
    ago_s = chance.choice([0, 30, 700, 4_000, 90_000, 40 * 86_400, 900 * 86_400, 1_000 * 86_400])
    steps: list[Step] = []
    for _ in range(chance.randint(1, 4)):
        sent = _sent(chance, chance.choice(["request", "completion", "usage", "usage", "again"]))
        first_ago_s = ago_s - chance.choice([0, 0, 1, 59, 61, 1_000, 90_000])
        mark = chance.choice([*[None] * 8, "yesterday", "2019-01-01T00:00:00Z"])
        made = replace(sent, ago_s=ago_s, behind_s=0)
        steps.append(Backfill(made, first_ago_s, is_listed=chance.random() < 0.85, mark=mark))
    return [*steps, *chance.choice([_round, _pass, _run, _nothing_more])(chance)]


def _with_audits(chance: random.Random, steps: list[Step]) -> list[Step]:
    """Half of the histories have something in their middle that is known better later, and audits."""
    places = [chance.randrange(len(steps) + 1) for _ in range(chance.choice([0, 0, 0, 1, 2, 4]))]
    for place in sorted(places, reverse=True):
        draw = chance.choice([_priced_late, _priced_late, _sent_anew, _given_up, _nothing_more])
        steps[place:place] = [*draw(chance), Audit()]
    return steps


def _priced_late(chance: random.Random) -> list[Step]:
    """Prices and contracts that hold from before the usage that is decided already."""
    late = [step for step in [*_publish(chance), *_publish(chance)] if isinstance(step, Publish)]
    late = [replace(step, from_s=chance.choice([-90_000, -3_600, 0])) for step in late]
    prices = [step for step in chance.sample(_catalog(), 3) if isinstance(step, Publish)]
    dated = [replace(step, amount=chance.randrange(1_000)) for step in prices if step.what != "account"]
    return [*_pair(chance), *_round(chance), *late, *dated, Pass(1, ALL), *_round(chance)]


def _sent_anew(chance: random.Random) -> list[Step]:
    """A gateway sends an event again hours later, with another time: it is taken for another."""
    first = replace(_sent(chance, chance.choice(["request", "usage", "completion"])), ago_s=0)
    anew = replace(first, kind="anew", again=-1, partition=chance.randrange(4))
    return [first, *_round(chance), Pass(chance.choice([3_601, 4_000, 90_000]), ALL), anew, *_round(chance)]


def _given_up(chance: random.Random) -> list[Step]:
    """A completion that comes after its request was given up."""
    request = replace(_sent(chance, "request"), ago_s=0, behind_s=0)
    completion = replace(_sent(chance, "completion"), account=request.account, request=request.request, ago_s=0)
    waits = Pass(chance.choice([1_801, 4_000, 36 * 86_400]), ALL)
    return [request, waits, *_round(chance), completion, Pass(1_801, ALL), *_round(chance)]


def _redriven(chance: random.Random) -> list[Step]:
    """One part of a request, or both, is a dead letter; the other is given up, now and then beside more of its key."""
    request = replace(_sent(chance, "request"), ago_s=0, behind_s=0)
    completion = replace(_sent(chance, "completion"), account=request.account, request=request.request, ago_s=0)
    steps: list[Step] = []
    parts = [request, completion] if chance.random() < 0.8 else [completion, request]
    is_dead = chance.choice([(True, False), (True, False), (False, True), (True, True)])
    passed_s, mended = 0.0, list[tuple[Send, float]]()
    for part, dies in zip(parts, is_dead, strict=True):
        steps += [replace(part, kind="malformed") if dies else part, _ingest()]
        mended += [(part, passed_s)] if dies else []
        waits_s = chance.choice([1, 1, 60, 700, 1_801])
        steps.append(Pass(waits_s, ALL))
        passed_s += waits_s
        if chance.random() < 0.3:
            steps.append(replace(part, kind=chance.choice(["request", "completion", "usage"]), behind_s=0))
    waits_s = chance.choice([1_801, 4_000, 90_000, 36 * 86_400])
    steps += [Pass(waits_s, ALL), *_round(chance), *([Audit()] if chance.random() < 0.5 else [])]
    passed_s += waits_s
    for number, (part, since_s) in enumerate(mended):
        again = replace(part, ago_s=passed_s - since_s, behind_s=0)
        steps += [Replay(number - len(mended), chance.randrange(4), again), Pass(chance.choice([1, 700]), ALL)]
        passed_s += steps[-1].seconds if isinstance(steps[-1], Pass) else 0
    return [*steps, Pass(1_801, ALL), *_round(chance), Audit()]


def _nothing_more(_: random.Random) -> list[Step]:
    return []


ALL = (0, 1, 2, 3)
AGO_S = (0, 0, 1, 30, 59.999999, 60, 600, 1_800, 1_800.000001, 4_000, 90_000, 40 * 86_400, -200, -400)
"""How long ago an event occurred: at the borders of minutes, sessions, the exact hour and the accept window, too."""


def _send(chance: random.Random) -> list[Step]:
    kinds = ["request"] * 4 + ["completion"] * 4 + ["usage"] * 2 + ["again"] * 4
    return [_sent(chance, chance.choice([*kinds, "conflict", "hole", "malformed", "other"]))]


def _sent(chance: random.Random, kind: str) -> Send:
    return Send(
        partition=chance.randrange(4),
        kind=kind,
        account=chance.choice([0, 0, 1, 2]),
        request=chance.randrange(4),
        ago_s=chance.choice(AGO_S),
        tokens=chance.choice([None, 0, 1, 7, 10**10]),
        behind_s=chance.choice([0, 0, 0, 0.5, 20, -20, 100]),
        again=chance.randrange(40),
        reasoning=chance.choice([None, 0, 5, 10**10]),
        seconds=chance.choice([None, 0, 0.1, 0.333333, 12.000001, 86_400]),
    )


def _pair(chance: random.Random) -> list[Step]:
    """A request, and its completion some time later; mostly nobody has read anything between."""
    request = _sent(chance, "request")
    completion = replace(_sent(chance, "completion"), account=request.account, request=request.request)
    return [request, *(_pass(chance) if chance.random() < 0.5 else []), completion]


def _repeat(chance: random.Random) -> list[Step]:
    """An event that occurred a while ago, and comes again later than the exact hour."""
    first = replace(_sent(chance, "request"), ago_s=chance.choice([3_700, 4_000, 90_000]))
    return [first, Pass(chance.choice([3_590, 3_700, 90_000]), ALL), replace(_sent(chance, "again"), again=-1)]


def _replay(chance: random.Random) -> list[Step]:
    """A dead letter, and then it again, mended or not, once or more often, or in the name of something else."""
    broken = replace(_sent(chance, chance.choice(["malformed", "request", "usage"])), ago_s=chance.choice(AGO_S))
    mended = replace(_sent(chance, chance.choice(["request", "completion", "usage", "again", "other"])), behind_s=0)
    ages = [0, 30, 60, 600, 3_700, 90_000, 36 * 86_400]
    mended = replace(mended, ago_s=chance.choice(ages))
    steps: list[Step] = [broken, _ingest(), *(_pass(chance) if chance.random() < 0.7 else [])]
    which = chance.randrange(6)
    for _ in range(chance.choice([1, 2, 2, 3])):
        place = (chance.randrange(3), chance.randrange(12)) if chance.random() < 0.15 else None
        made = chance.choice([None, mended, mended, replace(mended, request=chance.randrange(4))])
        steps.append(Replay(which, chance.randrange(4), made, place))
        steps += chance.choice([[], [], [_ingest()], _run(chance)])
    return steps


def _contract(chance: random.Random) -> list[Step]:
    """Events of a type that nobody knows, beside others of the same requests; then other contracts, and repeats."""
    steps: list[Step] = []
    for _ in range(chance.randint(1, 4)):
        other = replace(_sent(chance, "other"), ago_s=chance.choice([0, 0, 60, 4_000]), behind_s=0)
        steps += [other, *([replace(_sent(chance, "again"), again=-1)] if chance.random() < 0.3 else [])]
        beside = replace(_sent(chance, chance.choice(["request", "completion", "usage"])), account=other.account)
        steps += [replace(beside, request=other.request)] if chance.random() < 0.4 else []
    steps += chance.choice([_pass, _round, _nothing_more, _ingest_only])(chance)
    for _ in range(chance.randint(1, 2)):
        more = chance.choice([(OTHER,), (OTHER,), ()])
        steps += [Configure("ingestion", "contracts", (*CONTRACTS, *more)), Run("ingestion", 0, Fault.CRASH)]
        steps += [replace(_sent(chance, "again"), again=-1)] if chance.random() < 0.5 else []
        steps += chance.choice([_pair, _round, _send, _ingest_only])(chance)
        steps += [Pass(chance.choice([1, 700, 1_801]), ALL), *_round(chance), Audit()] if chance.random() < 0.6 else []
    return steps


def _ingest_only(_: random.Random) -> list[Step]:
    return [_ingest()]


def _catalog() -> list[Step]:
    """Two accounts with a plan that has prices."""
    prices: list[Step] = [Publish(meter, 0, "EUR", number, -90_000) for number, meter in enumerate(ALL_METERS)]
    return [*prices, *[Publish("account", 0, "EUR", account, None) for account in range(2)]]


def _publish(chance: random.Random) -> list[Step]:
    return [
        Publish(
            what=chance.choice(["account", "account", *ALL_METERS, "no_meter"]),
            plan=chance.randrange(2),
            currency=chance.choice(["EUR", "EUR", "USD"]),
            amount=chance.randrange(1_000),
            from_s=chance.choice([None, None, 0, -3_600, 60, -60]),
            deleted=chance.random() < 0.1,
        )
    ]


def _pass(chance: random.Random) -> list[Step]:
    seconds = chance.choice([0.001, 1, 5, 30, 60, 300, 600, 601, 900, 1_800, 1_801, 3_700, 90_000, 70 * 86_400])
    return [Pass(seconds, chance.choice([ALL, ALL, ALL, (0,), (0, 1), ()]))]


def _job(chance: random.Random) -> str:
    return chance.choice([*JOBS, "ingestion"])


def _calls(chance: random.Random) -> int:
    return int(2 ** chance.uniform(0, 8))


def _run(chance: random.Random) -> list[Step]:
    faults = [Fault.FREEZE] * 4 + [Fault.CRASH, Fault.FAIL, Fault.LOSE_ANSWER]
    return [Run(_job(chance), _calls(chance), chance.choice(faults), chance.choice(["", "", COMMIT]))]


def _round(_: random.Random) -> list[Step]:
    """All applications come to the end of their input."""
    return [Run(job, ENOUGH, Fault.FREEZE) for job in JOBS]


CHANGES: dict[tuple[str, str], tuple[Any, ...]] = {
    ("joins", "completion_timeout_seconds"): (60, 600, 1_200),
    ("joins", "completion_timeouts"): ({}, {"slow": 30}, {"slow": 1_500}),
    ("billing", "grace_seconds"): (0, 60, 900, 7_200),
    ("billing", "late_policy"): ({}, {"output_tokens": "drop"}),
    ("sessionization", "session_gap_seconds"): (30, 1_800, 3_600),
}


def _configure(chance: random.Random) -> list[Step]:
    """A configuration and then another, with traffic under both and what waits between; only a start reads it."""
    (job, field), values = chance.choice(list(CHANGES.items()))
    waits = _sent(chance, "request")
    steps: list[Step] = []
    for value in chance.sample(values, 2):
        steps += [Configure(job, field, value), Run(job, 0, Fault.CRASH)]
        steps += [step for _ in range(chance.randint(0, 2)) for step in chance.choice([_pair, _send])(chance)]
        steps += [waits, Pass(chance.choice([1, 60, 300, 700]), ALL), *_round(chance)]
        # Later it is its completion that comes, or another request of the same user.
        waits = replace(waits, kind=chance.choice(["completion", "request", "usage"]), ago_s=chance.choice(AGO_S))
    return steps


HELD = "reasoning held"
WAITS = {"output_tokens": "hold", "input_tokens": "hold"}
HOLDS: tuple[dict[str, Any], ...] = (
    {"seconds": 60, "expires": "correct"},
    {"seconds": 600},
    {"seconds": 4_000, "expires": "correct", "above_amount": "0.000500"},
    {"seconds": 90_000, "above_age_seconds": 1_000},
    {"seconds": 31_000_000, "above_amount": 1, "above_age_seconds": 4_000},
)


def _decide(chance: random.Random) -> list[Step]:
    """Stragglers that wait, and somebody who decides about some of them, twice now and then, or too late."""
    policy = chance.choice([WAITS, WAITS, {**WAITS, "requests": "hold"}])
    steps: list[Step] = [
        Configure("billing", "late_policy", policy),
        Configure("billing", "hold", chance.choice(HOLDS)),
    ]
    if chance.random() < 0.2:
        steps += [Declare(HELD), *[Run(job, 0, Fault.CRASH) for job in JOBS]]
    steps.append(Run("billing", 0, Fault.CRASH))
    for _ in range(chance.randint(1, 3)):
        usage = _sent(chance, "usage")
        steps.append(replace(usage, ago_s=chance.choice([1_800, 4_000, 90_000]), tokens=chance.choice([1, 7, 10**10])))
    steps += [Pass(chance.choice([1, 30, 300]), ALL), *_round(chance)]
    for _ in range(chance.randint(1, 4)):
        steps.append(Decide(chance.randrange(8), chance.choice(["approve", "reject"]), chance.random() < 0.1))
        steps += chance.choice([_pass, _run, _round, _send, _nothing_more])(chance)
    if chance.random() < 0.3:
        steps += [Configure("billing", "hold", chance.choice(HOLDS)), Run("billing", 0, Fault.CRASH)]
    return steps


def _declare(chance: random.Random) -> list[Step]:
    """Other meters twice, with what waits over each change; each application gets them when it starts again."""
    waits = _sent(chance, "request")
    steps: list[Step] = [waits]
    for meters in chance.sample([name for name in DECLARED if name not in (HELD, *CONDITIONAL)], 2):
        steps.append(Declare(meters))
        if chance.random() < 0.2:
            steps.append(Configure("joins", "completion_timeout_seconds", chance.choice([60, 600, 1_200])))
        for job in chance.sample(list(JOBS), chance.randint(1, len(JOBS))):
            steps += [Run(job, 0, Fault.CRASH), *chance.choice([_pair, _send, _run, _round])(chance)]
        waits = replace(waits, kind=chance.choice(["completion", "request", "usage"]), ago_s=chance.choice(AGO_S))
        steps += [waits, Pass(chance.choice([1, 60, 700, 1_900]), ALL), *_round(chance)]
    return steps


def _announced(chance: random.Random) -> list[Step]:
    """A plan that was to begin later, another one at once, and usage when the first would have begun."""
    first = Publish("account", chance.randrange(2), "EUR", chance.randrange(2), 60)
    second = replace(first, plan=1 - first.plan, from_s=chance.choice([None, 0, -60, 30, 90]))
    sent = replace(_sent(chance, "usage"), account=first.amount, ago_s=chance.choice([0, 0, 30, 600]))
    return [
        first,
        second,
        Pass(chance.choice([30, 60, 120]), ALL),
        *(_round(chance) if chance.random() < 0.5 else []),
        sent,
    ]


def _add_partition(chance: random.Random) -> list[Step]:
    """A partition is known, and others are read further than what it holds; or it stays empty for a while."""
    first = replace(_sent(chance, "request"), partition=-1, behind_s=chance.choice([0, 0, 0, 100]))
    silence = [Pass(chance.choice([1, 60, 300]), ALL, but_newest=chance.random() < 0.7), _ingest()]
    steps: list[Step] = [AddPartition(), *([Pass(1, (0, 1)), _ingest()] if chance.random() < 0.7 else [])]
    return [*steps, first, *silence] if chance.random() < 0.7 else [*steps, *silence, first]


def _ingest() -> Step:
    return Run("ingestion", ENOUGH, Fault.FREEZE)


def _chunk(chance: random.Random, job: str) -> Step:
    return Configure(job, "max_records_per_batch", chance.choice([1, 2, 3, 5, 20]))


def _exchange(chance: random.Random) -> list[Step]:
    """A table is exchanged; half of the time all are up to date and alive."""
    tables = [Table.JOURNAL, Table.JOURNAL, Table.USAGE, Table.USAGE, Table.ACCOUNTS, Table.PRICES]
    commits = chance.choice([None, None, 1, 1, 2, 5])
    step = Exchange(chance.choice(tables).value, commits, chance.choice([None, 0, 1, 3]), chance.random() < 0.5)
    return [*(_round(chance) if chance.random() < 0.5 else []), step]


DRAWS: dict[Draw, int] = {
    _send: 20,
    _pair: 6,
    _repeat: 3,
    _publish: 4,
    _pass: 8,
    _run: 24,
    _round: 2,
    lambda chance: [Double(_job(chance), _calls(chance))]: 3,
    lambda chance: [Wake(_job(chance), chance.randrange(3), _calls(chance))]: 4,
    _configure: 4,
    _declare: 4,
    _announced: 1,
    _add_partition: 3,
    lambda chance: [Compact(chance.choice([Table.JOURNAL, Table.USAGE]).value)]: 2,
    lambda _: [Retain(36)]: 1,
    lambda chance: [CutLog(chance.choice(list(Table)).value)]: 1,
    _exchange: 3,
}
