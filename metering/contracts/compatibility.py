"""Whether a changed contract still accepts the events that producers send by the old one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal

from metering.contracts.model import Contract, Field, Path, pointer
from metering.contracts.unnest import UNNEST


def narrowed(old: Contract, new: Contract) -> list[str]:
    """A sentence for each event or value that `old` accepted and `new` does not; none where `new` only accepts more.

    A new optional field is not a narrowing, although it refuses an event with another value in its place: no contract
    had read that value. Nor is another reason for the same rejection.
    """
    now = {field.path: field for field in new.fields}
    before = {field.path for field in old.fields}
    return [
        *_of_events(old, new),
        *(sentence for field in old.fields for sentence in _of_field(field, now.get(field.path))),
        *(f"{field.pointer}: it is new, and required" for field in new.fields if _asks_more(field, before)),
    ]


def withdrawn(old: Mapping[str, Contract], new: Mapping[str, Contract]) -> dict[str, list[str]]:
    """`narrowed` by type, where it finds something. Events of a type without a contract are not billed any more."""
    found = {
        name: narrowed(contract, new[name]) if name in new else ["it is gone: its events would be on no bill"]
        for name, contract in old.items()
    }
    return {name: sentences for name, sentences in found.items() if sentences}


def _of_events(old: Contract, new: Contract) -> Iterator[str]:
    if old.type != new.type:
        yield f"it is of {new.type}, and was of {old.type}"
    if old.family is not new.family:
        yield f"its family is {new.family}, and was {old.family}"
    if old.unnest != new.unnest:
        yield f"its {UNNEST} is {_array(new)}, and was {_array(old)}"


def _array(contract: Contract) -> str:
    return "nothing" if contract.unnest is None else pointer(contract.unnest)


def _asks_more(field: Field, before: set[Path]) -> bool:
    return field.is_required and field.path not in before


def _of_field(old: Field, new: Field | None) -> Iterator[str]:
    at = old.pointer
    if new is None:
        yield f"{at}: it is gone, so nothing fills the column {old.column} any more"
        return
    if new.kind is not old.kind:
        yield f"{at}: it is {new.kind}, and was {old.kind}"
    if new.column != old.column:
        yield f"{at}: its column is {new.column}, and was {old.column}"
    if old.takes_text and not new.takes_text:
        yield f"{at}: a string of the number is refused, and was taken"
    if new.is_required and not old.is_required:
        yield f"{at}: it is required, and was not"
    if new.kind is old.kind:
        yield from _of_values(old, new)


def _of_values(old: Field, new: Field) -> Iterator[str]:
    at = old.pointer
    if new.values is not None:
        if old.values is None:
            yield f"{at}: it must be one of {', '.join(new.values)}, and was any text"
        elif gone := [value for value in old.values if value not in new.values]:
            yield f"{at}: it may not be {', '.join(gone)} any more"
    elif new.max_bytes is not None:
        # Where values are listed, their bytes are not counted.
        most = old.max_bytes if old.values is None else max(len(value.encode()) for value in old.values)
        if most is None or most > new.max_bytes:
            yield f"{at}: it has at most {new.max_bytes} bytes, and had {'any number' if most is None else most}"
    if _is_tighter(old.minimum, new.minimum, 1):
        yield f"{at}: it is at least {new.minimum:f}, and was {_bound_text(old.minimum, 'at least')}"
    if _is_tighter(old.maximum, new.maximum, -1):
        yield f"{at}: it is at most {new.maximum:f}, and was {_bound_text(old.maximum, 'at most')}"


def _is_tighter(old: Decimal | None, new: Decimal | None, sign: int) -> bool:
    return new is not None and (old is None or sign * new > sign * old)


def _bound_text(bound: Decimal | None, words: str) -> str:
    return "without a bound" if bound is None else f"{words} {bound:f}"
