"""What really happened in a quarter: what was asked for, what it cost, and which records said so. Nothing of Weir."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

BEGIN = datetime(2025, 1, 1, tzinfo=UTC)
DAYS = 90
METERS = ("requests", "input_tokens", "output_tokens", "cached_tokens", "gpu_seconds")
DROPPED = "cached_tokens"
"""The meter of which nothing is billed that comes after its window's grace."""
GRACE = timedelta(minutes=15)
TIMEOUT = timedelta(minutes=10)
"""So long a request and its completion wait for each other; what is alone then is known to be."""

PriceKey = tuple[str, str, str, str]
"""Plan, model, meter, currency."""


@dataclass(frozen=True)
class Contract:
    """What an account has, from `holds_from` on."""

    holds_from: datetime
    plan: str
    currency: str


@dataclass(frozen=True)
class Asked:
    """One thing that somebody asked for, once, however often it was told.

    `occurred`: when it ended, or began if nobody heard of its end. `known`: when it was known what came of it.
    `model` and `dimensions` are unknown of what only its end is known of.
    """

    account: str
    model: str | None
    dimensions: tuple[tuple[str, str], ...]
    occurred: datetime
    known: datetime
    quantities: Mapping[str, Decimal]


@dataclass(frozen=True)
class Record:
    """What reached the broker, and when."""

    at: datetime
    account: str
    value: bytes


@dataclass(frozen=True)
class Change:
    """A change of the catalog. `what`: account or price. `ends`: since when what is deleted is none."""

    at: datetime
    what: str
    row: Mapping[str, Any]
    ends: datetime | None = None


@dataclass
class Truth:
    """A quarter. `contracts` and `prices` (by `holds_from`) are in the order of telling; `ends`: of deleted prices."""

    seed: int
    zones: dict[str, str] = field(default_factory=dict)
    contracts: dict[str, list[Contract]] = field(default_factory=dict)
    prices: dict[PriceKey, dict[datetime, Decimal]] = field(default_factory=dict)
    ends: dict[tuple[PriceKey, datetime], datetime] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    """What was late, told twice, priced late, by name."""
