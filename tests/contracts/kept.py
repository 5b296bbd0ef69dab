"""The shipped contracts as they were last kept, in `accepted`, and what those of today refuse of them.

They stand with the tests: nothing that runs reads them, so they are in no image. `make check` compares.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from metering.contracts.compatibility import withdrawn
from metering.contracts.keywords import Document
from metering.contracts.model import Contract
from metering.contracts.schema import contracts_of
from metering.contracts.shipped import shipped

FOLDER = Path(__file__).with_name("accepted")


def kept(folder: Path = FOLDER) -> dict[str, Document]:
    """The documents that were kept, by type."""
    documents = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json"))]
    return {document["$id"]: document for document in documents}


def refusals(folder: Path = FOLDER, today: Mapping[str, Document] | None = None) -> list[str]:
    """What contracts of today (the shipped ones) refuse of those that were kept, a sentence each."""
    now = shipped() if today is None else today
    said = withdrawn(_contracts(kept(folder)), _contracts(now))
    return [f"{name} {sentence}" for name, sentences in said.items() for sentence in sentences]


def unkept(folder: Path = FOLDER, today: Mapping[str, Document] | None = None) -> list[str]:
    """Types whose contract of today is not the one that was kept."""
    now = shipped() if today is None else today
    known = kept(folder)
    return [name for name, document in now.items() if known.get(name) != document]


def keep(folder: Path = FOLDER, today: Mapping[str, Document] | None = None) -> None:
    """Keep the contracts of today. Whether they refuse what was kept is to be asked before."""
    for name, document in (shipped() if today is None else today).items():
        text = json.dumps(document, indent=2, ensure_ascii=False)
        (folder / f"{name}.json").write_text(f"{text}\n", encoding="utf-8")


def _contracts(documents: Mapping[str, Document]) -> dict[str, Contract]:
    return contracts_of([], documents)
