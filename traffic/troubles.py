"""How often each kind of trouble happens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from traffic import scenarios
from traffic.script import Script


@dataclass(frozen=True)
class Trouble:
    """How often a scenario is played: `per_mille` of the records asked for, but at least `least` times."""

    play: Callable[[Script], None]
    per_mille: float
    least: int = 2


TROUBLES = (
    Trouble(scenarios.exact_duplicate, 10),
    Trouble(scenarios.resent_duplicate, 6),
    Trouble(scenarios.conflict, 4),
    Trouble(scenarios.out_of_order, 12),
    Trouble(scenarios.late, 15),
    Trouble(scenarios.straggler, 10),
    Trouble(scenarios.abandoned_straggler, 1),
    Trouble(scenarios.old, 1),
    Trouble(scenarios.early, 2),
    Trouble(scenarios.future, 3),
    Trouble(scenarios.too_old, 3),
    Trouble(scenarios.device, 15),
    Trouble(scenarios.abandoned, 8),
    Trouble(scenarios.orphaned, 5),
    Trouble(scenarios.superseded_request, 3),
    Trouble(scenarios.superseded_completion, 3),
    Trouble(scenarios.superseded_usage, 2),
    Trouble(scenarios.null_tokens, 10),
    Trouble(scenarios.unpriced_model, 6),
    Trouble(scenarios.unknown_account, 4),
    Trouble(scenarios.usage_completes_request, 4),
    Trouble(scenarios.usage_after_completion, 3),
    Trouble(scenarios.unknown_type, 3),
    Trouble(scenarios.quiet_source, 1),
)
