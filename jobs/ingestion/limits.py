"""Limits of statistics that are kept beside money: without them rows and tables would grow with what sources send."""

from __future__ import annotations

from dataclasses import dataclass

from monitoring.metrics import MAX_NEW_SOURCES


@dataclass(frozen=True)
class Limits:
    """The most of each; what is beyond is metered all the same."""

    ranges: int = 1_000
    """Of numbers of a source: one whose numbers leave more holes than this counts something else."""
    pending_ranges: int = 10_000
    """At the end of a minute, holes that do not count yet among them: the most that a row holds."""
    pending_runs: int = 2_000_000
    """Of numbers, 60 bytes each, that wait for the frontier. Hours of it standing still; then they are forgotten."""
    missed_rows: int = 1_000_000
    """Of the journal, that a start takes up. A crash leaves out one batch; a restored database would miss years."""
    new_sources: int = MAX_NEW_SOURCES
    """That are listed in an hour."""
    new_silences: int = 100
    """Sources that fall silent at once, each with a call. After an outage of Kafka all are silent until they send."""
    types: int = 1_000
    """That are listed; the events of further ones are counted together."""


LIMITS = Limits()
