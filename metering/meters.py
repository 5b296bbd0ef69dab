"""What is counted and priced: each meter is declared here, and only here. Columns, prices, windows and pages follow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True)
class Counted:
    """What makes a quantity: the outcomes that are billed are counted, or what completions report is added up."""

    unit: str
    """Of one, in the singular."""
    sums: str | None = None
    """The member of a completion's `data` that is added up, which the journal keeps in a column of the same name."""
    within: str | None = None
    """The meter that counts these units, too, so that a total of the unit leaves them out."""


class Meter(StrEnum):
    """The value is also the quantity's column in `usage`. A new one is a new version of two schemas (`streams`)."""

    REQUESTS = "requests", Counted("request")
    INPUT_TOKENS = "input_tokens", Counted("token", sums="input_tokens")
    OUTPUT_TOKENS = "output_tokens", Counted("token", sums="output_tokens")
    CACHED_TOKENS = "cached_tokens", Counted("token", sums="cached_tokens", within="input_tokens")

    counts: Counted

    def __new__(cls, name: str, counts: Counted) -> Meter:
        """A text, as every word, that also knows what it counts."""
        meter = str.__new__(cls, name)
        meter._value_ = name
        meter.counts = counts
        return meter


REPORTED: Mapping[Meter, str] = {meter: meter.counts.sums for meter in Meter if meter.counts.sums is not None}
"""The meters that completions report, each with the journal's column that it adds up."""

REPORTED_COLUMNS = tuple(dict.fromkeys(REPORTED.values()))
"""These columns of the journal, and members of `data`: whole numbers, null where nothing was reported."""

TOKENS = tuple(meter for meter in Meter if meter.counts.unit == "token" and meter.counts.within is None)
"""What a total of tokens adds up."""
