"""What was accepted under earlier rules can be repeated today: a change of rules hides no repeat of it.

How long before it occurs an event may be received, and whose clock says nothing of that, bound where a first is looked
for. The first was validated by the rules of its own time, so of all rules that ever held the widest bounds count.
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
