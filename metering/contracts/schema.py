"""JSON Schema documents → contracts. A keyword that Weir would not check is refused.

The dialect is draft 2020-12 with four differences: null means absent; an `integer` is written without fraction and
exponent; a `number` is a decimal below 10^11 with six decimals, unless its `format` is `double`; and a string may hold
a number where the annotation NUMBER allows it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from metering.contracts.details import yielding
from metering.contracts.field_reader import ContractRefused, FieldReader, _is_unicode, listed
from metering.contracts.includes import INCLUDES, Includes, includes_of
from metering.contracts.keywords import (
    MAX_FIELDS_OF_ALL,
    NEEDED,
    ROOT_KEYWORDS,
    Document,
)
from metering.contracts.model import Contract, Field, Kind, Path, pointer
from metering.contracts.unnest import COLUMN as ELEMENT_COLUMN
from metering.contracts.unnest import UNNEST, array_of
from metering.limits import MAX_NAME_BYTES
from metering.vocabulary import Family

SHIPPED_REF = "weir:"
"""`{"$ref": "weir:<type>"}` is the contract that Weir ships under that name."""


def contracts_of(own: Iterable[Document], shipped: Mapping[str, Document]) -> dict[str, Contract]:
    """The contract of each type: the shipped ones, and a user's `own`, which replace those with the same `$id`.

    A shipped contract does not read parts of tokens that `own` contracts fill themselves (`details.yielding`).

    Raises ContractRefused: for an invalid document, and where two contracts give one path or one column different
    types.
    """
    own = tuple(own)
    shipped = yielding(shipped, own)
    found = {name: contract_of(document, shipped) for name, document in shipped.items()}
    given: set[str] = set()
    for document in own:
        contract = contract_of(document, shipped)
        if contract.type in given:
            raise ContractRefused(f"contract {contract.type}: there are two documents with this $id; leave one out")
        given.add(contract.type)
        found[contract.type] = contract
    _refuse_two_meanings(found.values())
    _refuse_column_of_elements(found.values())
    if (count := sum(len(contract.fields) for contract in found.values())) > MAX_FIELDS_OF_ALL:
        raise ContractRefused(f"all contracts together have {count} fields; at most {MAX_FIELDS_OF_ALL}")
    return found


def contract_of(document: Document, shipped: Mapping[str, Document]) -> Contract:
    """One document as a contract. Raises ContractRefused."""
    if not isinstance(document, Mapping):
        raise ContractRefused(f"a contract is a JSON object, not {type(document).__name__}")
    name = document.get("$id")
    if (
        not _is_unicode(name)
        or not 1 <= len(name.encode()) <= MAX_NAME_BYTES
        or re.search(r"[\x00-\x1f\x7f-\x9f]", name)
    ):
        raise ContractRefused(
            f"a contract's $id is the type of its events, 1 to {MAX_NAME_BYTES} bytes; it is {name!r}"
        )
    if name.startswith(SHIPPED_REF):
        raise ContractRefused(f"a contract's $id does not begin with {SHIPPED_REF}, as a $ref does; it is {name!r}")
    reading = FieldReader(name)
    parts = [*_bases(reading, document, shipped), document]
    family = next((part["x-weir-family"] for part in reversed(parts) if "x-weir-family" in part), None)
    if not isinstance(family, str) or family not in list(Family):
        raise reading.refused((), f"x-weir-family is one of {', '.join(Family)}; it is {family!r}")
    _refuse_another_family(reading, name, family, shipped)
    for part in parts:
        reading.take_object(part, (), ROOT_KEYWORDS)
    fields = reading.fields(Family(family))
    description = next((part["description"] for part in reversed(parts) if "description" in part), "")
    needed = _with_what_is_needed(reading, Family(family), fields)
    includes = _includes(reading, parts, shipped.get(name, {}))
    return Contract(name, Family(family), needed, description, includes, _unnest(reading, parts, Family(family)))


def _unnest(reading: FieldReader, parts: Sequence[Document], family: Family) -> Path | None:
    """The document's own value, else its base's; null removes the base's."""
    given = next((part[UNNEST] for part in reversed(parts) if UNNEST in part), None)
    if given is None:
        return None
    try:
        return array_of(given, family, reading.paths)
    except ValueError as error:
        raise reading.refused((), str(error)) from None


def _includes(reading: FieldReader, parts: Sequence[Document], replaced: Document) -> Includes:
    """The document's own value, else its base's, else that of the contract it replaces."""
    given: Any = next((part[INCLUDES] for part in (*reversed(parts), replaced) if INCLUDES in part), {})
    try:
        return includes_of(given)
    except ValueError as error:
        raise reading.refused((), str(error)) from None


def _bases(reading: FieldReader, document: Document, shipped: Mapping[str, Document]) -> list[Document]:
    bases = []
    for base in listed(reading, document.get("allOf", []), "allOf"):
        ref = base.get("$ref") if isinstance(base, Mapping) and set(base) == {"$ref"} else None
        known = (
            shipped.get(ref.removeprefix(SHIPPED_REF)) if isinstance(ref, str) and ref.startswith(SHIPPED_REF) else None
        )
        if known is None:
            offered = ", ".join(f"{SHIPPED_REF}{name}" for name in sorted(shipped))
            raise reading.refused((), f'allOf holds only {{"$ref": …}} with one of {offered}; it holds {base!r}')
        bases.append(known)
    return bases


def _refuse_another_family(reading: FieldReader, name: str, family: str, shipped: Mapping[str, Document]) -> None:
    """Weir's own types keep their family, and so do its heartbeats."""
    if name in shipped and family != shipped[name]["x-weir-family"]:
        raise reading.refused((), f"x-weir-family of {name} is {shipped[name]['x-weir-family']}; it is {family!r}")


def _with_what_is_needed(reading: FieldReader, family: Family, fields: tuple[Field, ...]) -> tuple[Field, ...]:
    """The fields, with those of `NEEDED` columns required in every event, declared so or not."""
    columns = {field.column: field for field in fields}
    if family is Family.QUANTITY and "request_id" in columns:
        raise reading.refused(
            columns["request_id"].path,
            f"an event of the family {family} is known by its identity, not by a request; give the field another "
            "x-weir-column, such as call_id",
        )
    for name in NEEDED[family]:
        if name not in columns:
            raise reading.refused((), f"an event of the family {family} needs a field with the column {name}")
    return tuple(replace(field, is_required=True) if field.column in NEEDED[family] else field for field in fields)


def _refuse_two_meanings(contracts: Iterable[Contract]) -> None:
    kinds: dict[Path, tuple[str, str]] = {}
    columns: dict[str, tuple[str, Kind]] = {}
    for contract in contracts:
        places: list[tuple[Path, str]] = [(field.path, field.kind) for field in contract.fields]
        for place, holds in [*places, *([(contract.unnest, "an array")] if contract.unnest else ())]:
            steps = [(place[:length], "an object") for length in range(1, len(place))]
            for path, kind in [*steps, (place, holds)]:
                other, known = kinds.setdefault(path, (contract.type, kind))
                if known != kind:
                    raise ContractRefused(
                        f"{pointer(path)} is {known} in contract {other}, and {kind} in {contract.type}; give one of "
                        "the two another type, or leave it out"
                    )
        for field in contract.fields:
            other, of_column = columns.setdefault(field.column, (contract.type, field.kind))
            if of_column is not field.kind:
                raise ContractRefused(
                    f"the column {field.column} is {of_column} in contract {other}, and {field.kind} in "
                    f"{contract.type}; choose another column for one of the two"
                )


def _refuse_column_of_elements(contracts: Iterable[Contract]) -> None:
    """As long as none unnests, a contract of one's own may have a column of this name, as earlier releases let it."""
    listed = tuple(contracts)
    if any(contract.unnest is not None for contract in listed):
        for contract, field in ((owner, field) for owner in listed for field in owner.fields):
            if field.column == ELEMENT_COLUMN:
                raise ContractRefused(
                    f"contract {contract.type} at {field.pointer}: {field.column} is a column that Weir fills itself "
                    f"where a contract has {UNNEST}; choose another name"
                )
