"""The API's OpenAPI document as it was last kept, in `openapi.json`, and what today's breaks of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from api.openapi import document
from tests.contracts.openapi_changes import Document, breaking_changes

FILE = Path(__file__).with_name("openapi.json")


def breaking(file: Path = FILE, today: Document | None = None) -> list[str]:
    """What breaks clients of the kept document, a sentence each."""
    known = _kept(file)
    return [] if known is None else breaking_changes(known, today or _today())


def unkept(file: Path = FILE, today: Document | None = None) -> list[str]:
    """The file's name where it is not today's document."""
    return [] if _kept(file) == (today or _today()) else [file.name]


def keep(file: Path = FILE, today: Document | None = None) -> None:
    """Keep today's document. Whether it breaks the kept one is to be looked at before."""
    file.write_text(f"{json.dumps(today or _today(), indent=2, ensure_ascii=False)}\n", encoding="utf-8")


def _kept(file: Path) -> Document | None:
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None


def _today() -> dict[str, Any]:
    """As JSON has it: without tuples and enums."""
    found: dict[str, Any] = json.loads(json.dumps(document()))
    return found
