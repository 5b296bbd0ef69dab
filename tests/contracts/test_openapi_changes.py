"""What breaks a client of the API is found in its OpenAPI document, and what does not is no change to it."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.contracts import kept_openapi
from tests.contracts.openapi_changes import METHODS, breaking_changes, narrowed, withdrawn

DOCUMENT = json.loads(kept_openapi.FILE.read_text(encoding="utf-8"))
Place = tuple[Any, ...]


def places(part: Any, wanted: Callable[[Place, Any], bool], at: Place = ()) -> Iterator[Place]:
    """Where in the document something is."""
    if wanted(at, part):
        yield at
    items = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
    for name, value in items:
        yield from places(value, wanted, (*at, name))


def part_at(at: Place) -> Any:
    found = DOCUMENT
    for name in at:
        found = found[name]
    return found


def without(at: Place) -> Any:
    """The document without what is there."""
    changed = copy.deepcopy(DOCUMENT)
    parent = changed
    for name in at[:-1]:
        parent = parent[name]
    del parent[at[-1]]
    return changed


PATHS = [("paths", path) for path in DOCUMENT["paths"]]
OPERATIONS = [("paths", path, method) for path, of in DOCUMENT["paths"].items() for method in of if method in METHODS]
PARAMETERS = list(places(DOCUMENT, lambda at, _: len(at) > 1 and at[-2] == "parameters"))
MEMBERS = [
    at
    for at in places(DOCUMENT, lambda at, _: len(at) > 1 and at[-2] == "properties")
    if "responses" in at or part_at(at[:-2]).get("additionalProperties") is False  # an open body may have it still
]
PROMISES = list(places(DOCUMENT, lambda at, _: len(at) > 1 and at[-2] == "required" and "responses" in at))


def test_the_document_breaks_nothing_of_itself() -> None:
    assert breaking_changes(DOCUMENT, DOCUMENT) == []
    assert kept_openapi.breaking() == []
    assert kept_openapi.unkept() == []


@given(st.sampled_from([*PATHS, *OPERATIONS, *PARAMETERS, *MEMBERS, *PROMISES]))
def test_whatever_is_taken_away_is_found(at: Place) -> None:
    assert breaking_changes(DOCUMENT, without(at))


@given(st.sampled_from([*PATHS, *OPERATIONS]))
def test_what_is_added_breaks_nothing(at: Place) -> None:
    assert breaking_changes(without(at), DOCUMENT) == []


TEXT = {"type": "string"}
A_OR_B = {"type": "string", "enum": ["a", "b"]}
A = {"type": "string", "enum": ["a"]}
NULL_TOO = {"anyOf": [TEXT, {"type": "null"}]}


def object_of(*required: str, closed: bool = False, **members: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "object", "properties": members, "required": list(required)}
    return {**found, "additionalProperties": False} if closed else found


@pytest.mark.parametrize(
    ("narrow", "wide"),
    [
        (A, A_OR_B),
        (A, TEXT),
        (TEXT, NULL_TOO),
        ({"type": "integer"}, {"type": "number"}),
        ({"type": "integer", "maximum": 5}, {"type": "integer", "maximum": 6}),
        ({"type": "integer", "minimum": 5}, {"type": "integer"}),
        ({**TEXT, "pattern": "a"}, TEXT),
        ({"type": "array", "items": A, "maxItems": 3}, {"type": "array", "items": TEXT, "maxItems": 3}),
        (object_of("a", a=TEXT), object_of(a=TEXT)),
        (object_of(a=TEXT, closed=True), object_of(a=TEXT, b=TEXT, closed=True)),
        (object_of(a=TEXT), object_of(a=NULL_TOO)),
        ({"type": "object", "additionalProperties": A}, {"type": "object", "additionalProperties": TEXT}),
    ],
)
def test_a_request_may_become_wider_and_no_narrower(narrow: Any, wide: Any) -> None:
    assert narrowed(narrow, wide, "it") == []
    assert narrowed(wide, narrow, "it") != []
    assert narrowed(wide, wide, "it") == []


@pytest.mark.parametrize(
    ("before", "now", "is_broken"),
    [
        (NULL_TOO, TEXT, False),
        (TEXT, NULL_TOO, True),
        (TEXT, {"type": "integer"}, True),
        (A, A_OR_B, False),
        (A, TEXT, True),
        (TEXT, A, False),
        ({**TEXT, "format": "date-time"}, TEXT, True),
        (object_of("a", a=TEXT), object_of("a", "b", a=TEXT, b=TEXT), False),
        (object_of("a", a=TEXT), object_of(a=TEXT), True),
        (object_of("a", a=TEXT, closed=True), object_of("b", b=TEXT, closed=True), True),
        ({"type": "array", "items": TEXT}, {"type": "array", "items": NULL_TOO}, True),
    ],
)
def test_an_answer_keeps_what_it_had(before: Any, now: Any, is_broken: bool) -> None:
    assert bool(withdrawn(before, now, "it")) is is_broken


def test_a_change_that_breaks_clients_is_refused_and_another_one_asks_to_be_kept(tmp_path: Path) -> None:
    file = tmp_path / "openapi.json"
    assert kept_openapi.breaking(file) == []
    assert kept_openapi.unkept(file) == ["openapi.json"]
    kept_openapi.keep(file)
    assert (kept_openapi.breaking(file), kept_openapi.unkept(file)) == ([], [])
    changed = without(("paths", "/v1/usage"))
    assert kept_openapi.breaking(file, changed) == ["GET /v1/usage: it is gone"]
    assert kept_openapi.unkept(file, changed) == ["openapi.json"]
