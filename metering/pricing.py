"""Which version of a contract or price holds; joins' columns (`price`) are the copy of these rules for batches."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
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

    The very first version holds from the beginning of time, each other one from its `effective_from`. A deletion ends
    the account from its own time on; what comes after it is another life of the account, which takes the place of all
    that was before from the first of its times on.
    """
    visible = sorted((v for v in versions if v.lsn < decided_lsn), key=lambda version: version.lsn)
    begun = [v for number, v in enumerate(visible) if number == 0 or v.effective_from <= event_time]
    deletions = [version.lsn for version in visible if version.value is None]
    lives = [(bisect_left(deletions, version.lsn), version) for version in begun]
    last_life = max((life for life, _ in lives), default=0)
    latest = [version for life, version in lives if life == last_life]
    if any(version.value is None for version in latest):
        return None
    # The first version holds also where its own `effective_from` is the latest.
    return _latest([version for version in latest if version is not visible[0]]) or _latest(latest)


def price_as_of(versions: Iterable[Version[Value]], event_time: datetime, decided_lsn: int) -> Version[Value] | None:
    """The version of one (plan, model, meter, currency) that holds at `event_time`, seen from `decided_lsn`.

    A deletion withdraws what its `effective_from` began, so that the price before it goes on.
    """
    visible = [v for v in versions if v.lsn < decided_lsn and v.effective_from <= event_time]
    newest: dict[datetime, Version[Value]] = {}
    for version in sorted(visible, key=lambda version: version.lsn):
        newest[version.effective_from] = version
    return _latest([version for version in newest.values() if version.value is not None])


def _latest(versions: list[Version[Value]]) -> Version[Value] | None:
    return max(versions, key=lambda version: (version.effective_from, version.lsn), default=None)
