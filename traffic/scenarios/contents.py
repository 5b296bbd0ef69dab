"""What an event says, and of whom: quantities, models, accounts and types that nobody knows."""

from __future__ import annotations

from dataclasses import replace

from traffic import events
from traffic.catalog import UNPRICED_MODEL
from traffic.scenarios.plain import either
from traffic.script import Script


def null_tokens(script: Script) -> None:
    """The gateway does not know what was used: null is not 0, and not billed."""
    call = script.take()
    known = script.rng.choice((None, 0, call.used["output_tokens"]))
    used = {**dict.fromkeys(call.used), "output_tokens": known}
    either(script, replace(call, used=used), "null_tokens")


def unpriced_model(script: Script) -> None:
    """A model that has no price: emitted at once, without an amount."""
    either(script, script.take(model=UNPRICED_MODEL), "unpriced_model")


def unknown_account(script: Script) -> None:
    """An account that the catalog does not have: billed to nobody, without currency and amount, until it is known."""
    call = script.take()
    either(script, replace(call, account=script.catalog.unknown_account, user=None), "unknown_account")


def unknown_type(script: Script) -> None:
    """A type that Weir gives no meaning: kept and counted."""
    call = script.take()
    script.send(events.unknown(call), script.timeline.sent_at(call.ended_ms), "unknown_type")


def quiet_source(script: Script) -> None:
    """A source that shows signs of life in the first moments and then is silent."""
    start_ms, rng = script.timeline.start_ms, script.rng
    at_ms = start_ms + rng.randint(0, max(1, script.timeline.duration_ms // 5))
    source = f"gateway-quiet/{script.catalog.tag}"
    script.send(events.heartbeat(source, len(script.records), at_ms), at_ms, "quiet_source")
