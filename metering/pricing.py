"""Which version of a contract or price holds; joins' columns (`price`) are the copy of these rules for batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

Value = TypeVar("Value")


@dataclass(frozen=True)
class Version(Generic[Value]):
    """A change of one account or price. `value` None: deleted."""

    lsn: int
    effective_from: datetime
    value: Value | None


def account_as_of(versions: Iterable[Version[Value]], event_time: datetime, decided_lsn: int) -> Version[Value] | None:
    """The version of one account that holds at `event_time`, seen from `decided_lsn`; None when none does.

    An account is one row of the catalog, which says from when on it is so: the newest version that has begun holds, and
    with it the row as it is now, also against one that was announced before and begins later. A deletion is a version.
    The very first version holds from the beginning of time.
    """
    visible = sorted((v for v in versions if v.lsn < decided_lsn), key=lambda version: version.lsn)
    begun = [v for number, v in enumerate(visible) if number == 0 or v.effective_from <= event_time]
    return begun[-1] if begun and begun[-1].value is not None else None


def price_as_of(
    versions: Sequence[Version[Value]], event_time: datetime, decided_lsn: int, seen_from: int | None = None
) -> Version[Value] | None:
    """The version of one (plan, model, meter, currency) that holds at `event_time`, seen from `decided_lsn`.

    A deletion withdraws what its `effective_from` began, so that the price before it goes on. Who looks back from lsn
    `seen_from` knows the prices that came since, too. One that was withdrawn since was in force all the same; one that
    came since and was withdrawn again never was.
    """
    visible = [v for v in versions if v.effective_from <= event_time and v.lsn < max(decided_lsn, seen_from or 0)]
    newest: dict[datetime, Version[Value]] = {}
    since: dict[datetime, Version[Value]] = {}
    for version in sorted(visible, key=lambda version: version.lsn):
        (newest if version.lsn < decided_lsn else since)[version.effective_from] = version
    newest |= {begins: version for begins, version in since.items() if version.value is not None}
    left = (version for version in newest.values() if version.value is not None)
    return max(left, key=lambda version: version.effective_from, default=None)
