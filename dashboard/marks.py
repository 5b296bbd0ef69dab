"""How states and decisions are marked on every page: a sign and a word, since some people cannot see the colour."""

from __future__ import annotations

from metering.invoices import State
from metering.lateness import WindowState
from metering.vocabulary import Decision

WINDOWS: dict[str, str] = {
    WindowState.OPEN: "○ open",
    WindowState.CLOSING: "◐ closing",
    WindowState.CLOSED: "● closed",
    WindowState.CORRECTED: "✎ corrected",
}

DECISIONS: dict[str, str] = {
    Decision.CORRECT: "✎ corrected",
    Decision.APPROVE: "✓ approved",
    Decision.HOLD: "◷ waits",
    Decision.DROP: "✕ dropped",
    Decision.REJECT: "⊘ rejected",
}

INVOICES: dict[str, str] = {
    State.OPEN: "○ open",
    State.ISSUED: "● issued",
    State.VOIDED: "⊘ voided",
}

LIMIT_REACHED, STEP_REACHED, BELOW = "● limit reached", "◐ step reached", "○ below"
CROSSED, RETRACTED = "▲ crossed", "▽ retracted"
