"""Which outcome of a content a meter counts, by looking at all of them: the rule in its own words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

SECONDS = {"PT10M": 600, "P1D": 86_400}
"""The windows that histories declare."""
Parts = tuple[int | None, int | None]
Bill = Mapping[Any, Decimal]
"""Quantities by places, of which the first part is the meter."""


@dataclass(frozen=True)
class Content:
    """What an outcome says, and which of its meters count each content once: by meter the window, and the content."""

    parts: Parts
    account: str
    occurred: datetime
    identity: bytes
    said: Mapping[str, tuple[str, str | None]]


def counted_once(bills: Mapping[Parts, Bill], contents: Iterable[Content]) -> dict[Parts, Bill]:
    """What each outcome bills if each counted → what it bills."""
    firsts: dict[Any, Content] = {}
    listed = [(content, meter, _group(content, meter)) for content in contents for meter in content.said]
    for content, meter, group in listed:
        if group is None or not any(many for place, many in bills.get(content.parts, {}).items() if place[0] == meter):
            continue
        first = firsts.setdefault(group, content)
        if (content.occurred, content.identity) < (first.occurred, first.identity):
            firsts[group] = content
    gone = {(content.parts, meter) for content, meter, group in listed if firsts.get(group, content) is not content}
    return {
        parts: {place: many for place, many in bill.items() if (parts, place[0]) not in gone}
        for parts, bill in bills.items()
    }


def without(bills: Mapping[Parts, Bill], meters: Iterable[str]) -> dict[Parts, Bill]:
    """Without these meters: nobody can say what counts of contents some of whose outcomes are removed."""
    names = set(meters)
    left = {
        parts: {place: many for place, many in bill.items() if place[0] not in names} for parts, bill in bills.items()
    }
    return {parts: bill for parts, bill in left.items() if bill}


def _group(content: Content, meter: str) -> Any:
    window, said = content.said[meter]
    return (
        None
        if said is None
        else (content.account, meter, said, window, content.occurred.timestamp() // SECONDS[window])
    )
