"""How often each kind of trouble happens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from traffic.placement import Placement
from traffic.scenarios import (
    answers,
    borders,
    contents,
    in_time,
    members,
    names,
    parts,
    repeats,
    reports,
    reversals,
    tokens,
    traces,
)
from traffic.script import Script


@dataclass(frozen=True)
class Trouble:
    """How often a scenario is played: `per_mille` of the records asked for, but at least `least` times."""

    play: Callable[[Script], None]
    per_mille: float
    least: int = 2
    is_certain: Callable[[Placement], bool] = lambda _: True
    """Whether its fate is certain on a stack that is configured so."""


TROUBLES = (
    Trouble(repeats.exact_duplicate, 10),
    Trouble(repeats.resent_duplicate, 6),
    Trouble(repeats.conflict, 4),
    Trouble(repeats.of_long_ago, 3, is_certain=repeats.can_be_long_ago),
    Trouble(repeats.beyond_the_exact_horizon, 4, is_certain=repeats.can_be_beyond),
    Trouble(in_time.out_of_order, 12),
    Trouble(in_time.late, 15),
    Trouble(in_time.straggler, 10),
    Trouble(borders.minute, 4),
    Trouble(borders.change, 4),
    Trouble(borders.month, 3, is_certain=borders.can_be_month),
    Trouble(in_time.abandoned_straggler, 1),
    Trouble(in_time.old, 1),
    Trouble(in_time.early, 2),
    Trouble(in_time.future, 3),
    Trouble(in_time.too_old, 3),
    Trouble(in_time.device, 15, is_certain=in_time.has_devices),
    Trouble(parts.abandoned, 8),
    Trouble(parts.orphaned, 5),
    Trouble(parts.superseded_request, 3),
    Trouble(parts.superseded_completion, 3),
    Trouble(parts.superseded_usage, 2),
    Trouble(reports.failed, 6, is_certain=reports.can_be_ranked),
    Trouble(reports.retried, 4, is_certain=reports.can_be_ranked),
    Trouble(reports.streamed, 3, is_certain=reports.can_be_ranked),
    Trouble(traces.trace, 3, is_certain=traces.can_be_taken_apart),
    Trouble(traces.straggling_trace, 1, is_certain=traces.can_be_taken_apart),
    Trouble(traces.repeated_trace, 1, is_certain=traces.can_be_taken_apart),
    Trouble(traces.broken_trace, 1, is_certain=traces.can_be_taken_apart),
    Trouble(tokens.tokens_alone, 3, is_certain=tokens.can_be_counted),
    Trouble(tokens.straggling_tokens, 1, is_certain=tokens.can_be_counted),
    Trouble(reversals.whole, 3, is_certain=reversals.can_be_reversed),
    Trouble(reversals.in_part, 4, is_certain=reversals.can_be_reversed),
    Trouble(reversals.of_two_reports, 1, least=1, is_certain=reversals.can_be_reversed),
    Trouble(reversals.of_straggler, 1, least=1, is_certain=reversals.can_be_reversed),
    Trouble(reversals.of_abandoned, 1, least=1, is_certain=reversals.can_be_reversed),
    Trouble(reversals.of_trace, 1, least=1, is_certain=reversals.can_be_reversed_in_traces),
    Trouble(reversals.of_nobody, 0.5, least=1, is_certain=reversals.can_be_reversed),
    Trouble(reversals.unlisted, 0.5, least=1, is_certain=reversals.can_be_reversed),
    Trouble(borders.day, 3, least=0, is_certain=borders.can_be_day),
    Trouble(answers.repeated, 2, least=1, is_certain=answers.can_be_known),
    Trouble(answers.straggling, 1, least=0, is_certain=answers.can_be_known),
    Trouble(answers.at_the_hour, 1, least=0, is_certain=answers.can_be_known),
    Trouble(answers.taken_back, 1.5, least=0, is_certain=answers.can_be_taken_back),
    Trouble(members.at_one_instant, 2, least=0, is_certain=members.can_be_billed),
    Trouble(names.named, 8),
    Trouble(names.at_a_band, 2, is_certain=names.has_bands),
    Trouble(contents.null_tokens, 10),
    Trouble(contents.unpriced_model, 6),
    Trouble(contents.unknown_account, 4),
    Trouble(parts.usage_completes_request, 4),
    Trouble(parts.usage_after_completion, 3),
    Trouble(contents.unknown_type, 3),
    Trouble(contents.quiet_source, 1),
)
