"""The fields of one contract, read from its JSON Schema; anything that Weir would not check is refused."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any, TypeGuard

from metering.contracts.keywords import (
    ANNOTATIONS,
    ATTRIBUTE,
    COLUMN_NAME,
    COLUMNS,
    ENVELOPE,
    ENVELOPE_OTHER,
    LARGEST_INTEGER,
    MAX_FIELDS,
    MAX_LEVELS,
    MAX_UNITS,
    NUMBER,
    OBJECT_KEYWORDS,
    REASONS,
    RESERVED,
    TEXT_OR_NUMBER,
    TEXTS,
    TYPES,
    VALUE_KEYWORDS,
    Document,
)
from metering.contracts.model import Field, Kind, Path, pointer
from metering.limits import MAX_NAME_BYTES
from metering.vocabulary import Family, Reason


class ContractRefused(ValueError):
    """A document is not a contract; the message says where, and what is allowed."""


class FieldReader:
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
        if any(name not in ("object", "null") for name in types_of(schema.get("type", "object"))):
            raise self.refused(path, f"this is an object with properties; its type is {schema['type']!r}")
        properties = schema.get("properties", {})
        if not isinstance(properties, Mapping):
            raise self.refused(path, f"properties is an object; it is {properties!r}")
        for name in listed(self, schema.get("required", []), "required"):
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
        if "properties" in schema or "object" in types_of(schema.get("type")):
            if path[0] != "data":
                raise self.refused(path, "only data holds objects: attributes of CloudEvents are texts and numbers")
            self.take_object(schema, path, OBJECT_KEYWORDS)
        elif path in self._found and not _agrees(schema, self._found[path]):
            raise self.refused(path, "the contract that it builds on defines it differently; leave it out here")
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
        if path not in self._required and (least == 0 or "null" in types_of(schema.get("type"))):
            return False
        for length in range(2, len(path)):
            if path[:length] not in self._required:
                raise self.refused(path, f"it is required, so {pointer(path[:length])} must be required, too")
        return True

    def _kind(self, path: Path, schema: Document) -> Kind:
        names = [
            name for name in types_of(schema.get("type", "string" if "enum" in schema else None)) if name != "null"
        ]
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
        values = [value for value in listed(self, schema["enum"], "enum") if value is not None]
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
        # Not by `round`, which refuses more digits than the context's precision.
        if kind is Kind.DECIMAL and (Fraction(exact) * 10**6).denominator != 1:
            raise self.refused(path, f"{side} has more than six decimals: {bound!r}")
        return exact


def _agrees(schema: Document, base: Document) -> bool:
    """Whether a field equals its base's, or is empty, except that strings may hold its number."""
    own, of_base = ({name: document[name] for name in document if name != NUMBER} for document in (schema, base))
    return own == of_base or (not own and NUMBER in schema)


def _is_unicode(given: Any) -> TypeGuard[str]:
    """Whether it is a text, and not of half a surrogate pair."""
    return isinstance(given, str) and not re.search("[\ud800-\udfff]", given)


def types_of(given: Any) -> Sequence[Any]:
    """The keyword `type` as a list."""
    return given if isinstance(given, list | tuple) else [given]


def listed(reading: FieldReader, given: Any, name: str) -> Sequence[Any]:
    """The list of a keyword. Raises ContractRefused for anything else."""
    if not isinstance(given, list | tuple):
        raise reading.refused((), f"{name} is a list; it is {given!r}")
    return given
