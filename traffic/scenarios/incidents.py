"""What analytics is to find: retry storms, leaked keys and limits that are crossed, some of it late, some twice.

Beside each kind stands a near miss: one event fewer than it takes, with one of them sent twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import accumulate, product
from typing import Any

from traffic import events
from traffic.catalog import Catalog
from traffic.events import Call
from traffic.instants import rfc3339
from traffic.placement import MINUTE_MS, UnplaceableError, floor_minute
from traffic.scenarios.plain import either
from traffic.script import Record, Script, moved

STORM_ERRORS = 10
"""So many errors of a key in a row are a storm, where each comes at most STORM_GAP_MS after the last."""
STORM_GAP_MS = 30_000
LEAK_CHANGES = 3
"""A key that changes its region so often has leaked."""
INCIDENT_MS = 120_000
"""How long a storm or a leak is at most."""
LIMIT_TOKENS = 4_000_000
"""Output tokens of an account and month: more than all ordinary traffic of a run has."""
LARGE_TOKENS = 1_500_000
"""Output tokens of a call of which three cross the limit and two do not."""
REGIONS = ("eu", "us", "ap", "sa")
_LIVE_MS = 80_000
"""So long before the end of the traffic begin errors that are not to straggle: each waits for a better report."""


class IncidentKind(StrEnum):
    """What is planted. A near miss is no incident."""

    STORM = "storm"
    LEAK = "leak"
    CROSSING = "crossing"


PLANTED = {IncidentKind.STORM: 5, IncidentKind.LEAK: 3, IncidentKind.CROSSING: 7}
"""How many of each kind."""
NEAR_MISSES = {IncidentKind.STORM: 2, IncidentKind.LEAK: 2, IncidentKind.CROSSING: 2}


@dataclass(frozen=True)
class Incident:
    """One that was planted: storms and leaks are of a key of their own, crossings of an account."""

    kind: IncidentKind
    account: str
    api_key: str


def plant(script: Script) -> tuple[Incident, ...]:
    """Send all of them; those that are incidents, in the order in which they were planted.

    Raises UnplaceableError where the policy leaves errors no room, or the catalog no account whose prices stand still.
    """
    if script.placement.included(alone=True).most_ms < _LIVE_MS + 1_000:
        raise UnplaceableError("grace leaves errors of a storm less than 80 s, after what they wait for another report")
    if script.timeline.last_ms - script.timeline.first_ms < INCIDENT_MS:
        raise UnplaceableError("grace leaves a leak less than 120 s")
    accounts = [account.account for account in script.catalog.accounts.values()]
    script.rng.shuffle(accounts)
    found = []
    for kind, send in ((IncidentKind.STORM, _storm), (IncidentKind.LEAK, _leak), (IncidentKind.CROSSING, _crossing)):
        for number in range(PLANTED[kind] + NEAR_MISSES[kind]):
            is_incident = number < PLANTED[kind]
            api_key = f"key-{kind}-{number}-{script.catalog.tag}"
            # Of limits each has an account of its own.
            account = send(script, accounts, api_key, number, is_incident=is_incident)
            if kind is IncidentKind.CROSSING:
                accounts.remove(account)
            if is_incident:
                found.append(Incident(kind, account, api_key))
    return tuple(found)


def limit_rows(catalog: Catalog) -> list[dict[str, Any]]:
    """The limits of a run as they stand in a catalog file: one of each account."""
    return [
        {
            "account": account,
            "meter": "output_tokens",
            "period": "P1M",
            "quantity": str(LIMIT_TOKENS),
            "effective_from": rfc3339(min(contract.effective_from_ms for contract in known.contracts)),
        }
        for account, known in catalog.accounts.items()
    ]


def _storm(script: Script, accounts: Sequence[str], api_key: str, number: int, *, is_incident: bool) -> str:
    """Errors of a key, a few seconds apart; of every other storm all are stragglers, sent in any order."""
    rng = script.rng
    count = STORM_ERRORS + rng.randint(0, 3) if is_incident else STORM_ERRORS - 1
    is_straggling = number % 2 == 1
    times = _times(script, count, (1_500, 5_900), _LIVE_MS, is_straggling=is_straggling)
    calls = _calls(script, accounts, api_key, [(at, REGIONS[0]) for at in times])
    waits = script.placement.policy.best_report_bills
    for call in (replace(call, status="error") for call in calls):
        sent_ms = _any_time(script) if is_straggling else script.timeline.sent_at(call.ended_ms)
        document = events.usage(call)
        script.send(document, sent_ms, IncidentKind.STORM)
        script.expect(call, "matched", call.ended_ms, sent_ms, events.reported(call, document), waits=waits)
        if rng.random() < 0.2 or call.ended_ms == times[-1]:
            _repeat(script, document, sent_ms)
    return calls[0].account


def _leak(script: Script, accounts: Sequence[str], api_key: str, number: int, *, is_incident: bool) -> str:
    """Calls of a key from one region after the other; of every third key all are stragglers, sent in any order."""
    rng, is_straggling = script.rng, number % 3 == 2
    changes = rng.randint(LEAK_CHANGES, 6) if is_incident else LEAK_CHANGES - 1
    stays = [rng.choice(REGIONS)]
    for _ in range(changes):
        stays.append(rng.choice([region for region in REGIONS if region != stays[-1]]))
    regions = [region for region in stays for _ in range(rng.randint(1, 2))]
    times = _times(script, len(regions), (1_000, 8_000), INCIDENT_MS, is_straggling=is_straggling)
    calls = _calls(script, accounts, api_key, list(zip(times, regions, strict=True)))
    for call in calls:
        _send(script, call, IncidentKind.LEAK, is_straggling=is_straggling, is_twice=rng.random() < 0.3)
    return calls[0].account


def _crossing(script: Script, accounts: Sequence[str], api_key: str, _: int, *, is_incident: bool) -> str:
    """Calls with very many tokens within one minute, which is of one month in any zone; the last one comes twice."""
    timeline, last_second = script.timeline, 40
    minute_ms = floor_minute(script.rng.randint(timeline.first_ms + MINUTE_MS, timeline.last_ms - last_second * 1_000))
    seconds = sorted(script.rng.sample(range(last_second), 3 if is_incident else 2))
    times = [minute_ms + second * 1_000 for second in seconds]
    calls = _calls(script, accounts, api_key, [(at, REGIONS[0]) for at in times])
    for number, call in enumerate(calls, start=1):
        large = replace(call, used={**call.used, "output_tokens": LARGE_TOKENS})
        _send(script, large, IncidentKind.CROSSING, is_straggling=False, is_twice=number == len(calls))
    return calls[0].account


def _send(script: Script, call: Call, kind: str, *, is_straggling: bool, is_twice: bool) -> None:
    """A call that was answered, sent when it is due or any time later that leaves its fate certain."""
    due_ms = script.timeline.sent_at(call.ended_ms)
    latest_ms = min(script.timeline.last_ms, call.ended_ms + script.placement.included().most_ms)
    late_ms = _any_time(script) if is_straggling else script.rng.randint(due_ms, max(due_ms, latest_ms))
    sent_ms = late_ms if is_straggling or script.rng.random() < 0.4 else due_ms
    either(script, call, kind, sent_ms)
    if is_twice:
        # Of a pair its completion.
        script.records.append(_again(script, sent_ms))


def _again(script: Script, sent_ms: int) -> Record:
    last = script.records[-1]
    at_ms = sent_ms + script.rng.randint(1, 15_000)
    return replace(last, send_at_ms=at_ms, kind="incident_repeat", disposition="duplicate")


def _repeat(script: Script, document: events.Document, sent_ms: int) -> None:
    script.send(document, sent_ms + script.rng.randint(1, 15_000), "incident_repeat", "duplicate")


def _any_time(script: Script) -> int:
    return script.rng.randint(script.timeline.start_ms, script.timeline.last_ms)


def _times(script: Script, count: int, apart_ms: tuple[int, int], within_ms: int, *, is_straggling: bool) -> list[int]:
    """Instants in order: the last so long of the traffic has all, or the near past, of which all straggles."""
    steps = [script.rng.randint(*apart_ms) for _ in range(count - 1)]
    after_ms = list(accumulate(steps, initial=0))
    if is_straggling:
        near_ms, far_ms = script.near_past()
        first_ms, last_ms = script.timeline.start_ms - far_ms, script.timeline.start_ms - near_ms
    else:
        last_ms = script.timeline.last_ms
        first_ms = max(script.timeline.first_ms, last_ms - within_ms)
    if last_ms - first_ms < after_ms[-1]:
        raise UnplaceableError(f"an incident of {after_ms[-1] / 1000:.0f} s is longer than the traffic")
    begin_ms = script.rng.randint(first_ms, last_ms - after_ms[-1])
    return [begin_ms + later_ms for later_ms in after_ms]


def _calls(script: Script, accounts: Sequence[str], api_key: str, places: Sequence[tuple[int, str]]) -> list[Call]:
    """Calls of one account and model whose prices stand still meanwhile, each with when it ended and its region."""
    drawn = [
        replace(moved(script.take(), ended_ms), user=None, api_key=api_key, region=region)
        for ended_ms, region in places
    ]
    return next(_clear(script, accounts, drawn))


def _clear(script: Script, accounts: Iterable[str], calls: Sequence[Call]) -> Iterator[list[Call]]:
    models = list(script.catalog.models)
    script.rng.shuffle(models)
    for account, model in product(accounts, models):
        found = [replace(call, account=account, model=model) for call in calls]
        if all(map(script.is_clear, found)):
            yield found
    raise UnplaceableError("no account and model have the same prices all the while")
