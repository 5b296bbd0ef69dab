"""Which alerts may fire in a run, and which must.

An alert is *right* when what it says was so: the traffic is made to provoke it, or a fault that makes it true has
struck in this run. It is *wrong* when nothing in the run makes it true: nothing may be refused, unproved, lost or full
where the comparison finds that nothing is lost. One that certainly had to fire and did not is *missed*.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from tests.faults.plan import API, KINDS, STORE, Kind

Struck = tuple[Kind, str]
NETWORK = frozenset({Kind.CUT, Kind.DELAY, Kind.BLACKHOLE, Kind.ANSWER_LOST, Kind.KILL, Kind.FREEZE})
EVERY = frozenset((kind, target) for kind, drawn in KINDS.items() for target in drawn.targets)
REPLACED = frozenset(pair for pair in EVERY if pair[0] in (Kind.SECOND_DRIVER, Kind.ZOMBIE))
POISONED = frozenset({(Kind.POISON, "kafka")})


def _of(server: str) -> frozenset[Struck]:
    return frozenset((kind, server) for kind in NETWORK)


BY_TRAFFIC = frozenset(
    {"LateRateHigh", "DeadLetters", "FutureTimestamps", "DuplicateConflicts", "UnknownTypes", "WaitingRequestsGrowing"}
    | {"OutcomesUnpaired", "StragglersDropped", "DroppedMoney", "UnpricedUsage", "SourceSilent", "SequenceGap"}
    | {"UnmeteredUsage", "ReportsSuperseded"}
)
BY_FAULTS: Mapping[str, frozenset[Struck]] = {
    **dict.fromkeys(("FreshnessBurnFast", "FreshnessBurnSlow", "ApplicationDown", "ApplicationStalled"), EVERY),
    **dict.fromkeys(("ApplicationRestarting", "LagGrowing"), EVERY),
    "WritesFenced": REPLACED,
    "RecordsIsolated": POISONED,
    "DatabaseUnreadable": _of("postgres"),
    "WaitingForDatabase": _of("postgres"),
    "WaitingForKafka": _of("kafka"),
    "HeartbeatsFailing": _of("kafka"),
    "CatalogNotCaptured": _of("kafka") | _of("postgres"),
    "PublishingBehind": _of("kafka") | _of("postgres"),
    "ApiUnavailable": _of("kafka") | _of("postgres") | _of(API),
    "WaitingForStore": _of(STORE),
    "WaitingForBrokerClock": frozenset({(Kind.CLOCK_AHEAD, "kafka")}),
}
NEVER = frozenset(
    {"ConservationBroken", "AbsentOffsetsUnproved", "WritesRefused", "WaitingForMemory", "JoinsMemoryHigh"}
    | {"TopicAtRisk", "SourceFlood", "UncorrectedClocks", "IdentitiesEvicted", "UnreadRecordsAge"}
    | {"UnreadRecordsExpire", "TablesFillDisk", "TablesDiskFull", "AuditFound", "AuditOverdue", "StragglersExpire"}
    | {"ReversalsWait"}
    | {"CatalogChangesRejected", "CatalogNeverCaptured", "DeletionsNotPropagated", "SlotRetainsLog", "SlotNearlyLost"}
    | {"WebhooksWait", "WebhooksDead", "WebhookEndpointGone", "CorrectionsUnacknowledged", "OrderedEventsBehind"}
    | {"PriceJump", "DatabaseFillsDisk", "DatabaseDiskFull"}
    # What is posted there is too little to be refused, and nobody asks.
    | {"ApiRefusesTraffic", "ApiReadsFailing"}
)
MUST_BY_TRAFFIC = frozenset({"DeadLetters", "FutureTimestamps", "DuplicateConflicts", "UnknownTypes", "UnpricedUsage"})


@dataclass(frozen=True)
class AlertsVerdict:
    """Names of alerts, each once however often it fired."""

    right: tuple[str, ...]
    wrong: tuple[str, ...]
    missed: tuple[str, ...]


def compare(fired: Collection[str], struck: Collection[Struck]) -> AlertsVerdict:
    """What fired in a run in which these faults struck."""
    may = BY_TRAFFIC | {name for name, causes in BY_FAULTS.items() if causes & set(struck)}
    must = MUST_BY_TRAFFIC | ({"RecordsIsolated"} if POISONED & set(struck) else set())
    names = set(fired)
    return AlertsVerdict(tuple(sorted(names & may)), tuple(sorted(names - may)), tuple(sorted(must - names)))
