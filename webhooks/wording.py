"""Events in a sentence, for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from metering.limits import period_words, rolling_hours
from webhooks.event_types import EventType

MAX_VALUE_CHARACTERS = 200
SENTENCES: Mapping[EventType, str] = {
    EventType.INVOICE_ISSUED: "Invoice {invoice} of {account} for {period} was issued: {total} {currency}",
    EventType.INVOICE_VOIDED: "Invoice {invoice} of {account} for {period} was voided: {total} {currency}",
    EventType.CORRECTION_CREATED: "A closed window of {account} was corrected ({model}, {meter}, {window_start}): "
    "{old_quantity} is now {new_quantity}",
    EventType.STRAGGLER_HELD: "Late usage of {account} waits for a decision: "
    "{quantity} of {meter}, received at {received_at}",
    EventType.THRESHOLD_CROSSED: "{account} has reached {threshold} of {what}{of_model}{of_value} {in_period}: {value}",
    EventType.THRESHOLD_RETRACTED: "{account} is under {threshold} of {what}{of_model}{of_value} again "
    "{in_period}: {value}",
    EventType.PATTERN_MATCHED: "Pattern {pattern} matched {outcomes} outcomes ({keys}) from {started_at}",
    EventType.PATTERN_RETRACTED: "A match of pattern {pattern} ({keys}) from {started_at} was retracted",
    EventType.WATCH_HIT: "Watch {watch} has {hits} hits in the hour from {hour}",
    EventType.SOURCE_SILENT: "Source {source} is silent: it last sent at {last_seen_at}",
    EventType.SOURCE_HEARD: "Source {source} sends again: it was silent from {silent_since} to {last_seen_at}",
    EventType.DEAD_LETTER_SPIKE: "{records} records were rejected within ten minutes: {reason}",
    EventType.DEAD_LETTER_SPIKE_ENDED: "The spike of rejected records that began at {began_at} is over: {reason}",
}


class _Values(dict[str, Any]):
    def __missing__(self, key: str) -> str:
        return "?"


def sentence(kind: str, data: Mapping[str, Any]) -> str:
    """One line without control characters; the type where a later release wrote one that is not known here."""
    if kind not in SENTENCES:
        return kind
    values = {name: shown(_listed(value)) for name, value in data.items()}
    of_model = f" of {values['model']}" if values.get("model") else ""
    of_value = f" of {values['dimension']} {values.get('dimension_value', '?')}" if values.get("dimension") else ""
    of = {"what": _what(values), "of_model": of_model, "of_value": of_value, "in_period": _in_period(values)}
    return SENTENCES[EventType(kind)].format_map(_Values(values, **of))


def _what(values: Mapping[str, str]) -> str:
    """What a threshold limits: a meter, money, or what the usage of a meter costs."""
    named = [values.get(name, "?") for name in ("currency", "meter")]
    return " of ".join(name for name in named if name)


def _in_period(values: Mapping[str, str]) -> str:
    """In which period a threshold was reached."""
    period = values.get("period", "?")
    if rolling_hours(period):
        return f"in the {period_words(period)}"
    return f"in its {period_words(period)} from {values.get('period_start', '?')}"


def _listed(value: object) -> object:
    """The keys of a match as a text."""
    return ", ".join(f"{name} {part}" for name, part in value.items()) if isinstance(value, Mapping) else value


def shown(value: object) -> str:
    """A value on one line, cut where it is long; nothing for null."""
    text = "" if value is None else str(value)
    line = "".join(letter if letter.isprintable() else " " for letter in text)
    return line if len(line) <= MAX_VALUE_CHARACTERS else f"{line[:MAX_VALUE_CHARACTERS]}…"
