"""What changes of the OpenAPI document break clients: what they send is refused, or what they read is gone.

A request may become wider, an answer may have more members and, in a closed set, more values; nothing else may change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

Schema = Mapping[str, Any]
Document = Mapping[str, Any]
Compare = Callable[[Schema, Schema, str], list[str]]

METHODS = ("get", "post", "put", "patch", "delete")
LIMITS = {"minimum": max, "minLength": max, "minItems": max, "maximum": min, "maxLength": min, "maxItems": min}
"""The one of two limits that is narrower."""
NARROW_TYPES = {("integer", "number")}


def breaking_changes(before: Document, now: Document) -> list[str]:
    """A sentence for each."""
    return [
        f"{method.upper()} {path}: {sentence}"
        for path, methods in before["paths"].items()
        for method in METHODS
        if method in methods
        for sentence in _of_operation(
            _resolved(before, methods[method]), _resolved(now, now["paths"].get(path, {}).get(method))
        )
    ]


def _of_operation(before: Schema, now: Schema | None) -> Iterator[str]:
    if now is None:
        yield "it is gone"
        return
    yield from _of_parameters(before, now)
    body, body_now = before.get("requestBody", {}), now.get("requestBody", {})
    if body_now.get("required") and not body.get("required"):
        yield "it needs a body"
    yield from _of_content(body, body_now, "the body", narrowed)
    for status, response in before["responses"].items():
        if status not in now["responses"]:
            yield f"the answer {status} is gone"
        else:
            yield from _of_content(response, now["responses"][status], f"the answer {status}", withdrawn)


def _of_parameters(before: Schema, now: Schema) -> Iterator[str]:
    known, known_now = (
        {(each["in"], each["name"]): each for each in operation.get("parameters", ())} for operation in (before, now)
    )
    for place, parameter in known.items():
        name = f"the parameter {place[1]}"
        if place not in known_now:
            yield f"{name} is gone"
            continue
        yield from narrowed(parameter["schema"], known_now[place]["schema"], name)
    for place, parameter in known_now.items():
        if parameter.get("required") and not known.get(place, {}).get("required"):
            yield f"it needs the parameter {place[1]}"


def _of_content(before: Schema, now: Schema, where: str, compare: Compare) -> Iterator[str]:
    for media_type, content in before.get("content", {}).items():
        if media_type not in now.get("content", {}):
            yield f"{where} has no {media_type} any more"
        else:
            yield from compare(content.get("schema", {}), now["content"][media_type].get("schema", {}), where)


def narrowed(before: Schema, now: Schema, where: str) -> list[str]:
    """What a request could have and now may not."""
    return _fewest(_alternatives(before), _alternatives(now), lambda old, new: _narrowed(old, new, where))


def withdrawn(before: Schema, now: Schema, where: str) -> list[str]:
    """What an answer had and now may not have."""
    return _fewest(_alternatives(now), _alternatives(before), lambda new, old: _withdrawn(old, new, where))


def _narrowed(before: Schema, now: Schema, where: str) -> list[str]:
    found = _of_type(before, now, where)
    if "enum" in now and (gone := set(before.get("enum", ["any other value"])) - set(now["enum"])):
        found.append(f"{where} may not be {', '.join(map(str, sorted(gone)))} any more")
    found += [
        f"{where} has another {word}"
        for word in ("pattern", "format")
        if now.get(word, before.get(word)) != before.get(word)
    ]
    found += [
        f"{where} has a narrower {word}"
        for word, narrower in LIMITS.items()
        if word in now and (word not in before or narrower(before[word], now[word]) != before[word])
    ]
    found += [f"{where} needs {name}" for name in now.get("required", ()) if name not in before.get("required", ())]
    if now.get("additionalProperties") is False and before.get("additionalProperties") is not False:
        found.append(f"{where} may have no other members any more")
    for name, schema in before.get("properties", {}).items():
        if name in now.get("properties", {}):
            found += narrowed(schema, now["properties"][name], f"{where}/{name}")
        elif now.get("additionalProperties") is False:
            found.append(f"{where}/{name} is gone")
    return found + _of_parts(before, now, where, narrowed)


def _withdrawn(before: Schema, now: Schema, where: str) -> list[str]:
    found = _of_type(now, before, where)
    if "enum" in before and "enum" not in now:
        found.append(f"{where} is no closed set any more")
    found += [
        f"{where} has another {word}"
        for word in ("pattern", "format")
        if now.get(word) != before.get(word, now.get(word))
    ]
    for name, schema in before.get("properties", {}).items():
        if name in now.get("properties", {}):
            found += withdrawn(schema, now["properties"][name], f"{where}/{name}")
        else:
            found.append(f"{where}/{name} is gone")
    found += [
        f"{where}/{name} may be missing"
        for name in before.get("required", ())
        if name not in now.get("required", ()) and name in now.get("properties", {})
    ]
    return found + _of_parts(before, now, where, withdrawn)


def _of_type(narrower: Schema, wider: Schema, where: str) -> list[str]:
    kind, other = narrower.get("type"), wider.get("type")
    return [] if other in (None, kind) or (kind, other) in NARROW_TYPES else [f"{where} has another type"]


def _of_parts(before: Schema, now: Schema, where: str, compare: Compare) -> list[str]:
    """Of items of lists, and of members that have no name in the schema."""
    found = []
    for word in ("items", "additionalProperties"):
        if isinstance(before.get(word), Mapping) and isinstance(now.get(word), Mapping):
            found += compare(before[word], now[word], f"{where}/*")
    return found


def _fewest(these: list[Schema], others: list[Schema], compare: Callable[[Schema, Schema], list[str]]) -> list[str]:
    """Each alternative needs another one that it agrees with; else what it lacks of the nearest."""
    return [sentence for this in these for sentence in min((compare(this, other) for other in others), key=len)]


def _alternatives(schema: Schema) -> list[Schema]:
    return list(schema.get("anyOf") or [schema])


def _resolved(document: Document, part: Any) -> Any:
    """The part with what its references stand for."""
    if isinstance(part, Mapping):
        if "$ref" in part:
            found: Any = document
            for name in part["$ref"].removeprefix("#/").split("/"):
                found = found[name]
            return _resolved(document, found)
        return {name: _resolved(document, value) for name, value in part.items()}
    return [_resolved(document, each) for each in part] if isinstance(part, list) else part
