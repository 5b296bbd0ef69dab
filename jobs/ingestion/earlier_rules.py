"""What was accepted under earlier rules can be repeated today: no change of rules hides a repeat of it.

The accept window and the list of trusted clocks bound where the first copy is searched. The first copy was validated by
the rules of its own time, so the widest bounds that ever were in effect count.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta

from jobs.ingestion.config import IngestionConfig
from jobs.ingestion.repeats import Horizons
from jobs.runtime.effective_rules import EffectiveRules, History, Rules


def looked_for(config: IngestionConfig, history: Iterable[EffectiveRules]) -> tuple[Horizons, tuple[str, ...]]:
    """What `candidates` takes of rows that are validated by `config`, after what was validated by `history`."""
    earlier = [effective.rules for effective in history]
    early_seconds = max([config.accept_future_seconds, *(rules["accept_future_seconds"] for rules in earlier)])
    devices = [*config.clocks.device, *(pattern for rules in earlier for pattern in rules["clocks"]["device"])]
    horizons = replace(config.horizons, early=timedelta(seconds=early_seconds))
    return horizons, tuple(dict.fromkeys(devices))


def comparable_since(present: Rules, history: History, next_lsn: int) -> int:
    """The lsn from which on digests of contents can be compared with those of `present` rules.

    An earlier digest is of another version, or of other contracts, and so of other fields of the same event.
    """
    since = next_lsn
    for effective in reversed(history):
        if any(effective.rules.get(name) != present[name] for name in ("contracts", "digest")):
            break
        since = effective.first
    return since
