"""Likely mistakes in valid events: unread fields, no quantity at all, a misspelt type."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from itertools import chain
from typing import Any

from jobs.ingestion.conformance import STATUS
from jobs.ingestion.rules import TIME_SOURCE
from jobs.ingestion.strict_json import Tree, tree_of
from jobs.ingestion.unnesting import without
from metering.contracts.details import COLUMNS
from metering.contracts.keywords import ENVELOPE, ENVELOPE_OTHER
from metering.contracts.model import Contract, Kind, Path, pointer
from metering.contracts.unnest import element_text
from metering.vocabulary import REPORTING, Status

MAX_LISTED = 20
MIN_LIKENESS = 0.85
"""Least similarity of a misspelt type to the intended one: difflib's ratio, 1 for equal texts."""


def unread_fields(document: bytes, contract: Contract) -> str | None:
    """Pointers of members of a valid event that its contract does not read; None where it reads all."""
    fields = [field.path for field in contract.fields]
    read = [*((name,) for name in (*ENVELOPE, *ENVELOPE_OTHER, TIME_SOURCE)), *fields]
    event = _event(document)
    if contract.unnest is None:
        found = list(_unread(event, tree_of(read), ()))
    else:
        # The objects around the array are read on the way to it.
        around = _unread(without(event, contract.unnest), tree_of([*read, contract.unnest]), ())
        of_data, elements = tree_of(fields).get("data") or {}, _value(event, contract.unnest) or ()
        of_elements = (_unread(members, of_data, (*contract.unnest, str(at))) for at, members in enumerate(elements))
        found = [*around, *chain.from_iterable(of_elements)]
    more = [f"and {len(found) - MAX_LISTED} more"] if len(found) > MAX_LISTED else []
    return ", ".join([*found[:MAX_LISTED], *more]) or None


def missing_quantities(document: bytes, contract: Contract) -> str | None:
    """A hint for a completed request without any quantity of its contract; None where it has one."""
    event = _event(document)
    if contract.unnest is None:
        return _missing_in(event, contract)
    around = without(event, contract.unnest)
    for element, members in enumerate(_value(event, contract.unnest) or (), start=1):
        own = {name: value for name, value in members.items() if value is not None}
        if (missing := _missing_in({**around, "data": {**around["data"], **own}}, contract)) is not None:
            return f"{element_text(contract.unnest, element)}: {missing}"
    return None


def _missing_in(event: Mapping[str, Any], contract: Contract) -> str | None:
    quantities = [field for field in contract.fields if field.kind in (Kind.INTEGER, Kind.DECIMAL)]
    status = next((_value(event, field.path) for field in contract.fields if field.column == STATUS), None)
    is_completed = status in (None, Status.COMPLETED.value)
    if contract.family not in REPORTING or not quantities or not is_completed:
        return None
    if any(_value(event, field.path) is not None for field in quantities):
        return None
    noun = "token field" if all(field.column.endswith("_tokens") for field in quantities) else "quantity"
    usual = [field.pointer for field in quantities if field.column not in COLUMNS]
    return f"no {noun} was found: it has none of {', '.join(usual or [field.pointer for field in quantities])}"


def likely_type(name: str, types: Iterable[str]) -> str | None:
    """The known type that a misspelt one most likely is; None where none is near."""
    return next(iter(get_close_matches(name, list(types), n=1, cutoff=MIN_LIKENESS)), None)


def _event(document: bytes) -> Mapping[str, Any]:
    try:
        # Python refuses integers of more than 4,300 digits, and here only what is read counts.
        event = json.loads(document, parse_int=float)
    except RecursionError:
        # It is valid, but nested too deep for Python's reader: no hint.
        return {}
    return event if isinstance(event, dict) else {}


def _unread(members: Mapping[str, Any], read: Tree, path: tuple[str, ...]) -> Iterator[str]:
    for name, value in members.items():
        if name not in read:
            yield pointer((*path, name))
        elif (below := read[name]) is not None and isinstance(value, dict):
            yield from _unread(value, below, (*path, name))


def _value(event: Mapping[str, Any], path: Path) -> Any:
    value: Any = event
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value
