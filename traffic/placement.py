"""Where an event may lie in time so that its fate is certain before it is sent.

`received_at` is the broker's append time, known only afterwards. So every record has an instant at which it is to be
sent, and arrives between then and `slack` later (the sender fails when it cannot keep that). An event's *lag* is the
instant of sending minus its event time. A range of lags keeps the event at least `margin` away from

* window end + grace, by the outcome's received_at (its last part's, plus its timeout if a part is missing):
  included or straggler;
* both ends of the accept window: accepted, `too_old` or `future`;
* the completion timeout of the request's model between two parts: matched, or abandoned and orphaned.

The catalog's changes (price or plan of before or after) are kept clear of by `script`, by event time. Being on time or
late inside grace moves no total, and an event of this very minute is always near that boundary; only events that are
`certainly late` are said to be. Events of devices move with their delay (`event_time = time + received_at -
senttime`), so they lie in seconds 5 to 20 of their minute: up to `slack` later it is still the same minute.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from random import Random
from typing import Any

from traffic.attributes import PRICE_ATTRIBUTES
from traffic.declared import CONTRACT, CONTRACT_OF_TOKENS, CONTRACT_OF_TRACES
from traffic.meters import DEFAULT, LATEST, REPORTED, Meter, PeriodMeter

MINUTE_MS = 60_000
DEVICE_FIRST_MS, DEVICE_LAST_MS = 5_000, 20_000
MAX_CALL_MS = 20_000
STRAGGLER_SPREAD_SECONDS = 300


@dataclass(frozen=True)
class Policy:
    """What the stack that will bill the traffic is configured to do; defaults are those of `weir demo`."""

    completion_timeout_seconds: int = 120
    completion_timeouts: Mapping[str, int] = field(default_factory=dict)
    grace_seconds: int = 300
    late_policy: Mapping[str, str] = field(default_factory=dict)
    session_gap_seconds: int = 1_800
    accept_past_seconds: int = 35 * 86_400
    accept_future_seconds: int = 300
    dedupe_horizon_seconds: int = 35 * 86_400
    exact_horizon_seconds: int = 3_600
    device_patterns: tuple[str, ...] = ()
    meters: tuple[Meter, ...] = DEFAULT
    period_meters: tuple[PeriodMeter, ...] = ()
    best_report_bills: bool = True
    """Whether of several reports of a call the best one bills, and not the first."""
    counts_parts_twice: bool = False
    """Whether the conventions of shipped contracts do not hold: a part is billed beside its whole."""
    knows_seconds: bool = False
    """Whether it reads the completions of the gateway that speaks of seconds."""
    knows_traces: bool = False
    """Whether it takes events of several calls apart."""
    knows_tokens: bool = False
    """Whether it reads the events of a gateway that sends one for each type of tokens."""
    reversal_sources: tuple[str, ...] = ()
    """Patterns of those who may take usage back."""
    knows_attributes: bool = False
    """Whether prices may depend on what `attributes` says of events."""

    @classmethod
    def of(cls, jobs: Mapping[str, Mapping[str, Any]]) -> Policy:
        """From the configuration of each job, as `weir up --config` takes it; what is left out has its default."""
        others = ("meters", "period_meters", "late_policy", "best_report_bills")
        known = {
            name: value
            for config in jobs.values()
            for name, value in config.items()
            if name in cls.__dataclass_fields__ and name not in others
        }
        ingestion, joins = jobs.get("ingestion", {}), jobs.get("joins", {})
        declared = sorted(joins.get("meters", {}).items())
        meters = {name: meter for name, meter in declared if not meter.get("period")}
        late = {name: meter["late_policy"] for name, meter in meters.items() if meter.get("late_policy")}
        return cls(
            **known,
            late_policy={**jobs.get("billing", {}).get("late_policy", {}), **late},
            device_patterns=tuple(ingestion.get("clocks", {}).get("device", ())),
            meters=tuple(Meter.of(name, meter) for name, meter in meters.items()) if declared else DEFAULT,
            period_meters=tuple(PeriodMeter.of(name, meter) for name, meter in declared if meter.get("period")),
            # Left open, it is as a new stack has it; earlier releases did not know it.
            best_report_bills=joins.get("best_report_bills", False) is not False,
            counts_parts_twice=ingestion.get("shipped_conventions") is False,
            knows_seconds=CONTRACT in ingestion.get("contracts", ()),
            knows_traces=CONTRACT_OF_TRACES in ingestion.get("contracts", ()),
            knows_tokens=CONTRACT_OF_TOKENS in ingestion.get("contracts", ()),
            reversal_sources=tuple(ingestion.get("reversal", {}).get("sources") or ()),
            knows_attributes=all(name in joins.get("price_attributes", ()) for name in PRICE_ATTRIBUTES),
        )

    @property
    def priced(self) -> tuple[Meter | PeriodMeter, ...]:
        """All meters, by name: each can have prices."""
        return tuple(sorted((*self.meters, *self.period_meters), key=lambda meter: meter.name))

    @property
    def bills_latest_of_devices(self) -> bool:
        """Whether a number of the latest event is billed that devices report: these times move with their delay."""
        return any(meter.aggregation == LATEST and meter.column in REPORTED for meter in self.period_meters)

    def timeout_seconds(self, model: str | None) -> int:
        """How long a request of a model waits for its completion; None: a completion, which waits the longest."""
        if model is None:
            return max(self.completion_timeout_seconds, *self.completion_timeouts.values(), 0)
        return self.completion_timeouts.get(model, self.completion_timeout_seconds)

    def is_device(self, source: str) -> bool:
        """Whether this source's clock is corrected."""
        return any(fnmatchcase(source, pattern) for pattern in self.device_patterns)

    def may_reverse(self, source: str) -> bool:
        """Whether this source may take usage back."""
        return any(fnmatchcase(source, pattern) for pattern in self.reversal_sources)


class UnplaceableError(ValueError):
    """The stack's configuration leaves no room for an event whose fate is certain."""


@dataclass(frozen=True)
class Lags:
    """A range of lags, in milliseconds, both ends included."""

    least_ms: int
    most_ms: int

    def draw(self, rng: Random) -> int:
        """A lag within the range."""
        return rng.randint(self.least_ms, self.most_ms)


@dataclass(frozen=True)
class Placement:
    """The ranges of lag for each fate, under one policy."""

    policy: Policy = Policy()
    margin_seconds: int = 60
    slack_seconds: int = 30

    @property
    def margin_ms(self) -> int:
        """The least distance from any boundary."""
        return self.margin_seconds * 1000

    @property
    def slack_ms(self) -> int:
        """The longest a record may take from its planned instant to the broker."""
        return self.slack_seconds * 1000

    def included(self, *, alone: bool = False) -> Lags:
        """On time or late, but not a straggler. `alone`: a part is missing, so that the timeout passes first."""
        waits = self.policy.timeout_seconds(None) if alone else 0
        most = self.policy.grace_seconds - self.margin_seconds - self.slack_seconds - waits
        return _lags(f"grace of {self.policy.grace_seconds} s (completion timeout {waits} s)", 0, most)

    def certainly_late(self) -> Lags:
        """Received at least the margin after its window ended, and well within grace."""
        return _lags(
            f"grace of {self.policy.grace_seconds} s", 60 + self.margin_seconds, self.included().most_ms // 1000
        )

    def straggler(self, near_seconds: int) -> Lags:
        """Received at least the margin after its window's grace ended; no longer ago than that, if grace has room."""
        least = self.policy.grace_seconds + self.margin_seconds + 60
        accepted = self.old().most_ms // 1000
        return _lags("a straggler", least, min(max(near_seconds, least + STRAGGLER_SPREAD_SECONDS), accepted))

    def early(self) -> Lags:
        """Dated after it is received, and still accepted."""
        return _lags("the accept window", self.margin_seconds - self.policy.accept_future_seconds, -self.margin_seconds)

    def future(self) -> Lags:
        """Dated so far ahead that it is rejected."""
        nearest = self.policy.accept_future_seconds + self.margin_seconds + self.slack_seconds
        return _lags("the future", -nearest - 7_200, -nearest)

    def old(self) -> Lags:
        """Older than anything else, and still accepted."""
        most = self.policy.accept_past_seconds - self.margin_seconds - self.slack_seconds
        return _lags("the accept window", most - 1_500, most)  # narrower than a session gap

    def is_long_ago(self, lags: Lags) -> bool:
        """Whether what lags so far behind certainly is a straggler, and accepted."""
        least = self.policy.grace_seconds + self.margin_seconds + 60
        return least * 1000 <= lags.least_ms and lags.most_ms <= self.old().most_ms

    def too_old(self) -> Lags:
        """Dated so long ago that it is rejected."""
        nearest = self.policy.accept_past_seconds + self.margin_seconds
        return _lags("the past", nearest, nearest + 86_400)

    def apart(self, model: str) -> Lags:
        """Between the sending of two parts that are to find each other: a call of this model may take as long."""
        waits = self.policy.timeout_seconds(model)
        most = waits - self.margin_seconds - self.slack_seconds
        _lags(f"a completion timeout of {waits} s", MAX_CALL_MS // 1000, most)
        return Lags(0, most * 1000)

    def is_straggler(self, window_end_ms: int, decided_ms: int) -> bool:
        """Whether the outcome of a request is a straggler. Raises UnplaceableError when that is not certain.

        `decided_ms`: the planned sending of its last part, plus the timeout where a part is missing.
        """
        over_ms = window_end_ms + self.policy.grace_seconds * 1000
        if decided_ms >= over_ms + self.margin_ms:
            return True
        if decided_ms + self.slack_ms <= over_ms - self.margin_ms:
            return False
        raise UnplaceableError(f"decided at {decided_ms} ms, which is too near to the end of grace at {over_ms} ms")


def _lags(what: str, least_seconds: int, most_seconds: int) -> Lags:
    if least_seconds > most_seconds:
        raise UnplaceableError(f"{what} leaves no room for events whose fate is certain; the defaults do")
    return Lags(least_seconds * 1000, most_seconds * 1000)


def floor_minute(instant_ms: int) -> int:
    """The start of the minute window that holds an instant."""
    return instant_ms - instant_ms % MINUTE_MS
