"""JSON Schema documents → contracts. A keyword that Weir would not check is refused.

The dialect is draft 2020-12 with four differences: null means absent; an `integer` is written without fraction and
exponent; a `number` is a decimal below 10^11 with six decimals, unless its `format` is `double`; and a string may hold
a number where the annotation NUMBER allows it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any, TypeGuard

from metering.contracts.details import yielding
from metering.contracts.includes import COLUMN as INCLUDES_COLUMN
from metering.contracts.includes import INCLUDES, Includes, includes_of
from metering.contracts.model import Contract, Field, Kind, Path, pointer
from metering.contracts.reversals import REASON as REVERSAL_REASON
from metering.contracts.unnest import COLUMN as ELEMENT_COLUMN
from metering.contracts.unnest import UNNEST, array_of
from metering.limits import MAX_NAME_BYTES, PLAIN_NAME
from metering.meters import REPORTED_COLUMNS
from metering.vocabulary import Family, Reason

Document = Mapping[str, Any]
"""A JSON Schema, as Python's `json` reads it."""

SHIPPED_REF = "weir:"
"""`{"$ref": "weir:<type>"}` is the contract that Weir ships under that name."""

ENVELOPE: tuple[str, ...] = ("specversion", "id", "source", "type", "subject", "time")
"""Attributes of CloudEvents that are texts in every event; a contract may give one a column."""
ENVELOPE_OTHER: tuple[str, ...] = (
    "senttime",
    "sequence",
    "sourceepoch",
    "data_base64",
    "datacontenttype",
    "dataschema",
)
"""Attributes that Weir reads itself, or never."""

COLUMNS: Mapping[str, Kind] = {
    **dict.fromkeys(("request_id", "model", "user_id", "api_key_id", "operation", "route", "region"), Kind.TEXT),
    **dict.fromkeys(("content_hash", "status", "usage_source"), Kind.TEXT),
    **dict.fromkeys((*REPORTED_COLUMNS, "reasoning_tokens"), Kind.INTEGER),
    "cached": Kind.BOOLEAN,
    "latency_ms": Kind.DOUBLE,
}
"""Columns that every journal has for fields of events, and what they hold, in the order in which they are validated."""
NEEDED: Mapping[Family, tuple[str, ...]] = {
    Family.REQUEST: ("request_id", "model"),
    Family.COMPLETION: ("request_id",),
    Family.BOTH: ("request_id", "model"),
    Family.QUANTITY: ("model",),
    Family.HEARTBEAT: (),
    Family.REVERSAL: ("request_id", REVERSAL_REASON),
}
"""Columns that a contract of each family fills, from fields that are required: what speaks of a request names it, and
and a row that begins one, or is an outcome by itself, needs its model."""
RESERVED = frozenset(
    (
        *(
            "lsn",
            "log_date",
            "topic",
            "partition",
            "offset",
            "received_at",
            "first_received_at",
            "reception_mark",
            "replay_mark",
            "replays_lsn",
            "logged_at",
            "frontier",
        ),
        *("rules", "disposition", "reason", "violation", "first_lsn", "identity", "content_digest", "source", "id"),
        *("type", "family", "account", "occurred_at", "sent_at", "event_time", "clock_offset_ms", "source_epoch"),
        *("sequence", "key", "value", INCLUDES_COLUMN, "record_headers"),
        # What a batch has besides on its way into the journal.
        *("number", "stamped_at", "is_broker_stamp", "occurred_us", "sent_us", "device_sent_us", "isolated", "same"),
    )
)
"""Columns that no field may fill."""

MAX_FIELDS = 210
MAX_LEVELS = 8
MAX_FIELDS_OF_ALL = 420
"""Of all contracts together: each is a column of every batch."""
LARGEST_INTEGER = 10**11 - 1
"""Of an integer without a maximum of its own: what a quantity can be."""
MAX_UNITS = 10**10
"""That a completion may report of a meter; fewer than 0 it cannot."""
COLUMN_NAME = re.compile(PLAIN_NAME)
ATTRIBUTE = re.compile(r"[a-z0-9]+")
_OF_NO_FIELD = (Reason.INVALID_CATALOG_CHANGE, Reason.INVALID_RECEPTION)
REASONS = tuple(reason.value for reason in Reason if reason.startswith("invalid_") and reason not in _OF_NO_FIELD)
"""Why an event may break its contract; the other reasons are about more than that."""
TEXTS = frozenset(("$schema", "title", "description"))
_MEMBERS = TEXTS | {"type"}
OBJECT_KEYWORDS = _MEMBERS | {"required", "properties"}
ROOT_KEYWORDS = OBJECT_KEYWORDS | {"$id", "allOf", "x-weir-family", INCLUDES, UNNEST}
VALUE_KEYWORDS = _MEMBERS | {"enum", "minLength", "minimum", "maximum", "format"}
NUMBER, TEXT_OR_NUMBER = "x-weir-number", "text_or_number"
"""The annotation by which a string that holds a number is that number, and its one value."""
ANNOTATIONS = frozenset(("x-weir-column", "x-weir-max-bytes", NUMBER, "x-weir-reason"))
TYPES = {"string": Kind.TEXT, "integer": Kind.INTEGER, "number": Kind.DECIMAL, "boolean": Kind.BOOLEAN}


class ContractRefused(ValueError):
    """A document is not a contract; the message says where, and what is allowed."""


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
    reading = _Reading(name)
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


def _unnest(reading: _Reading, parts: Sequence[Document], family: Family) -> Path | None:
    """The document's own value, else its base's; null removes the base's."""
    given = next((part[UNNEST] for part in reversed(parts) if UNNEST in part), None)
    if given is None:
        return None
    try:
        return array_of(given, family, reading.paths)
    except ValueError as error:
        raise reading.refused((), str(error)) from None


def _includes(reading: _Reading, parts: Sequence[Document], replaced: Document) -> Includes:
    """The document's own value, else its base's, else that of the contract it replaces."""
    given: Any = next((part[INCLUDES] for part in (*reversed(parts), replaced) if INCLUDES in part), {})
    try:
        return includes_of(given)
    except ValueError as error:
        raise reading.refused((), str(error)) from None


def _bases(reading: _Reading, document: Document, shipped: Mapping[str, Document]) -> list[Document]:
    bases = []
    for base in _list(reading, document.get("allOf", []), "allOf"):
        ref = base.get("$ref") if isinstance(base, Mapping) and set(base) == {"$ref"} else None
        known = (
            shipped.get(ref.removeprefix(SHIPPED_REF)) if isinstance(ref, str) and ref.startswith(SHIPPED_REF) else None
        )
        if known is None:
            offered = ", ".join(f"{SHIPPED_REF}{name}" for name in sorted(shipped))
            raise reading.refused((), f'allOf holds only {{"$ref": …}} with one of {offered}; it holds {base!r}')
        bases.append(known)
    return bases


class _Reading:
    """The fields of one contract, as they are found."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._found: dict[Path, Document] = {}
        self._required: set[Path] = set()

    @property
    def paths(self) -> Iterable[Path]:
        """Of all fields that were found."""
        return self._found.keys()

    def refused(self, path: Path, problem: str) -> ContractRefused:
        """What is raised for a problem at a path."""
        return ContractRefused(f"contract {self._name}{pointer(path) and f' at {pointer(path)}'}: {problem}")

    def take_object(self, schema: Document, path: Path, allowed: frozenset[str]) -> None:
        """What an object holds; `path` () is the event itself."""
        self._known_only(schema, path, allowed)
        if len(path) > MAX_LEVELS:
            raise self.refused(path, f"fields are at most {MAX_LEVELS} levels deep")
        if any(name not in ("object", "null") for name in _types(schema.get("type", "object"))):
            raise self.refused(path, f"this is an object with properties; its type is {schema['type']!r}")
        properties = schema.get("properties", {})
        if not isinstance(properties, Mapping):
            raise self.refused(path, f"properties is an object; it is {properties!r}")
        for name in _list(self, schema.get("required", []), "required"):
            if not isinstance(name, str):
                raise self.refused(path, f"required holds names of properties; it holds {name!r}")
            self._required.add((*path, name))
        for name, member in properties.items():
            self._take(member, (*path, name))

    def _take(self, schema: Any, path: Path) -> None:
        if not isinstance(schema, Mapping):
            raise self.refused(path, f"a field is described by an object; it is {schema!r}")
        if not _is_unicode(path[-1]) or not path[-1] or "\x00" in path[-1]:
            raise self.refused(path[:-1], f"a field has a name, of Unicode without U+0000; it is {path[-1]!r}")
        if path[-1] == "*" or (path[-1].startswith("^") and path[-1].endswith("$")):
            raise self.refused(path[:-1], f"a field's name is no pattern; it is {path[-1]!r}")
        if len(path) == 1 and path[0] != "data" and path[0] not in ENVELOPE and not ATTRIBUTE.fullmatch(path[0]):
            raise self.refused((), f"an attribute of CloudEvents has a name of a-z and 0-9; it is {path[0]!r}")
        if "properties" in schema or "object" in _types(schema.get("type")):
            if path[0] != "data":
                raise self.refused(path, "only data holds objects: attributes of CloudEvents are texts and numbers")
            self.take_object(schema, path, OBJECT_KEYWORDS)
        elif path in self._found and not _agrees(schema, self._found[path]):
            raise self.refused(path, "the contract that it builds on says something else of it; leave it out here")
        else:
            self._known_only(schema, path, VALUE_KEYWORDS | ANNOTATIONS)
            self._found[path] = {**self._found.get(path, {}), **schema}

    def _known_only(self, schema: Document, path: Path, allowed: frozenset[str]) -> None:
        if unknown := sorted(set(schema) - allowed, key=str):
            raise self.refused(
                path,
                f"Weir does not check {unknown[0]}, so it is not allowed; allowed are {', '.join(sorted(allowed))}",
            )
        for name in TEXTS & schema.keys():
            if not _is_unicode(schema[name]):
                raise self.refused(path, f"{name} is a text; it is {schema[name]!r}")

    def fields(self, family: Family) -> tuple[Field, ...]:
        """All of them, in the order in which they are validated: those of COLUMNS, then the others by their paths."""
        fields = [self._field(path, schema) for path, schema in self._found.items()]
        if len(fields) > MAX_FIELDS:
            raise self.refused((), f"it has {len(fields)} fields; at most {MAX_FIELDS}")
        columns = [field.column for field in fields]
        for field in fields:
            if columns.count(field.column) > 1:
                raise self.refused(field.path, f"two fields fill the column {field.column}; each needs its own")
        prefixes = {path[:length] for path in self._found for length in range(1, len(path))}
        for path in sorted(self._required - prefixes):
            if path not in self._found:
                raise self.refused(path, "it is required, but no property describes it")
        for path in self._found.keys() & prefixes:
            raise self.refused(path, "it is a value in one place and an object in another")
        if family is not Family.HEARTBEAT and all(field.path[0] != "data" for field in fields):
            raise self.refused(("data",), "it describes no field of data")
        # Not in the document's order: tools may reorder its keys, and the first reason counts.
        order = list(COLUMNS)
        ranks = {column: rank for rank, column in enumerate(order)}
        return tuple(sorted(fields, key=lambda field: (ranks.get(field.column, len(order)), field.path)))

    def _field(self, path: Path, schema: Document) -> Field:
        kind = self._kind(path, schema)
        values = self._values(path, schema, kind)
        column = schema.get("x-weir-column")
        if not isinstance(column, str) or not COLUMN_NAME.fullmatch(column):
            raise self.refused(
                path, f"x-weir-column names the journal's column: a-z, 0-9 and _, at most 63; it is {column!r}"
            )
        if column in RESERVED:
            raise self.refused(path, f"{column} is a column that Weir fills itself; choose another name")
        if COLUMNS.get(column, kind) is not kind:
            raise self.refused(path, f"the column {column} holds {COLUMNS[column]}; this field is {kind}")
        if path[0] != "data" and (len(path) > 1 or kind is not Kind.TEXT or path[0] in ENVELOPE_OTHER):
            raise self.refused(path, "of the envelope only attributes that are texts can have a column")
        reason = schema.get("x-weir-reason", Reason.INVALID_DATA)
        if not isinstance(reason, str) or reason not in REASONS:
            raise self.refused(path, f"x-weir-reason is one of {', '.join(REASONS)}; it is {reason!r}")
        lowest, highest = (self._bound(path, schema, kind, side) for side in ("minimum", "maximum"))
        if kind in (Kind.INTEGER, Kind.DECIMAL):
            largest = Decimal(LARGEST_INTEGER) if kind is Kind.INTEGER else Decimal(10**17 - 1).scaleb(-6)
            least = -largest
            if column in COLUMNS:
                least, largest = Decimal(0), Decimal(MAX_UNITS)
                if (lowest or least) < least or (highest or largest) > largest:
                    raise self.refused(path, f"the column {column} holds 0 to {MAX_UNITS}")
            lowest = least if lowest is None else max(lowest, least)
            highest = largest if highest is None else min(highest, largest)
        if lowest is not None and highest is not None and lowest > highest:
            raise self.refused(path, f"no value is at least {lowest:f} and at most {highest:f}")
        is_required, most = self._is_required(path, schema, kind), self._bytes(path, schema, kind)
        if long := [value for value in values or () if len(value.encode()) > (most or 0)]:
            raise self.refused(path, f"enum holds a text of more than {most} bytes: {long[0][:40]!r}")
        takes_text = self._takes_text(path, schema, kind)
        return Field(path, kind, column, Reason(reason), is_required, values, most, lowest, highest, takes_text)

    def _is_required(self, path: Path, schema: Document, kind: Kind) -> bool:
        # A member of an optional object is required only where the object is present. An absent object cannot be
        # distinguished from one without members, so that rule could not be checked.
        least = schema.get("minLength", 0)
        if least not in (0, 1) or isinstance(least, bool) or ("minLength" in schema and kind is not Kind.TEXT):
            raise self.refused(path, f"minLength is 0 or 1, of a string; it is {least!r}")
        if path not in self._required and (least == 0 or "null" in _types(schema.get("type"))):
            return False
        for length in range(2, len(path)):
            if path[:length] not in self._required:
                raise self.refused(path, f"it is required, so {pointer(path[:length])} must be required, too")
        return True

    def _kind(self, path: Path, schema: Document) -> Kind:
        names = [name for name in _types(schema.get("type", "string" if "enum" in schema else None)) if name != "null"]
        if len(names) != 1 or not isinstance(names[0], str) or names[0] not in TYPES:
            raise self.refused(
                path, f"its type is one of {', '.join(TYPES)}, and may be null; it is {schema.get('type')!r}"
            )
        kind = TYPES[names[0]]
        given = schema.get("format")
        if given is not None and (kind is not Kind.DECIMAL or given != "double"):
            raise self.refused(path, f"format is double, of a number; it is {given!r}")
        return Kind.DOUBLE if given else kind

    def _values(self, path: Path, schema: Document, kind: Kind) -> tuple[str, ...] | None:
        if "enum" not in schema:
            return None
        values = [value for value in _list(self, schema["enum"], "enum") if value is not None]
        is_text = all(value and _is_unicode(value) and "\x00" not in value for value in values)
        if not values or not is_text or kind is not Kind.TEXT:
            raise self.refused(path, f"enum is of a string, holds texts, and may hold null; it is {schema['enum']!r}")
        return tuple(values)

    def _bytes(self, path: Path, schema: Document, kind: Kind) -> int | None:
        if "x-weir-max-bytes" not in schema:
            return MAX_NAME_BYTES if kind is Kind.TEXT else None
        most = schema["x-weir-max-bytes"]
        if kind is not Kind.TEXT or type(most) is not int or not 1 <= most <= MAX_NAME_BYTES:
            raise self.refused(path, f"x-weir-max-bytes is 1 to {MAX_NAME_BYTES}, of a string; it is {most!r}")
        return most

    def _takes_text(self, path: Path, schema: Document, kind: Kind) -> bool:
        if NUMBER not in schema:
            return False
        if kind in (Kind.TEXT, Kind.BOOLEAN) or schema[NUMBER] != TEXT_OR_NUMBER:
            raise self.refused(path, f"{NUMBER} is {TEXT_OR_NUMBER}, of an integer or number; it is {schema[NUMBER]!r}")
        return True

    def _bound(self, path: Path, schema: Document, kind: Kind, side: str) -> Decimal | None:
        bound = schema.get(side)
        if bound is None:
            return None
        is_number = isinstance(bound, int | float | Decimal) and not isinstance(bound, bool)
        if not is_number or kind in (Kind.TEXT, Kind.BOOLEAN):
            raise self.refused(path, f"{side} is a number, of a number; it is {bound!r}")
        exact = Decimal(str(bound))
        if not exact.is_finite() or (kind is Kind.INTEGER and exact != int(exact)):
            raise self.refused(path, f"{side} is {bound!r}, which no {kind} can be")
        if kind is Kind.DECIMAL and exact != int(exact) and exact != round(exact, 6):
            raise self.refused(path, f"{side} has more than six decimals: {bound!r}")
        return exact


def _refuse_another_family(reading: _Reading, name: str, family: str, shipped: Mapping[str, Document]) -> None:
    """Weir's own types keep their family, and so do its heartbeats."""
    if name in shipped and family != shipped[name]["x-weir-family"]:
        raise reading.refused((), f"x-weir-family of {name} is {shipped[name]['x-weir-family']}; it is {family!r}")


def _with_what_is_needed(reading: _Reading, family: Family, fields: tuple[Field, ...]) -> tuple[Field, ...]:
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


def _agrees(schema: Document, base: Document) -> bool:
    """Whether a field equals its base's, or is empty, except that strings may hold its number."""
    own, of_base = ({name: document[name] for name in document if name != NUMBER} for document in (schema, base))
    return own == of_base or (not own and NUMBER in schema)


def _is_unicode(given: Any) -> TypeGuard[str]:
    """Whether it is a text, and not of half a surrogate pair."""
    return isinstance(given, str) and not re.search("[\ud800-\udfff]", given)


def _types(given: Any) -> Sequence[Any]:
    return given if isinstance(given, list | tuple) else [given]


def _list(reading: _Reading, given: Any, name: str) -> Sequence[Any]:
    if not isinstance(given, list | tuple):
        raise reading.refused((), f"{name} is a list; it is {given!r}")
    return given
