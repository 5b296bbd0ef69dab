"""Contracts in files that users write: one JSON Schema document each. A refusal names the file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from metering.contracts.field_reader import ContractRefused
from metering.contracts.keywords import Document
from metering.contracts.schema import contracts_of
from metering.members import member_twice


def documents_in(files: Sequence[Path], shipped: Mapping[str, Document]) -> list[Document]:
    """The documents in some files, in their order; they apply together with the shipped ones.

    Raises ContractRefused: which file, what in it, and what is allowed.
    """
    documents = [_document(file) for file in files]
    try:
        contracts_of(documents, shipped)
    except ContractRefused:
        _report_which(files, documents, shipped)
        raise
    return documents


def _document(file: Path) -> Document:
    try:
        found = json.loads(file.read_bytes().decode("utf-8-sig"), object_pairs_hook=_once, parse_constant=_refuse)
    except OSError as problem:
        raise ContractRefused(f"{file} cannot be read: {problem.strerror}; a contract is a JSON file") from None
    except (ValueError, RecursionError) as problem:
        raise ContractRefused(f"{file} is no JSON: {problem}") from None
    if not isinstance(found, Mapping):
        raise ContractRefused(f"{file} holds {type(found).__name__}; a contract is one JSON object")
    return found


def _report_which(files: Sequence[Path], documents: Sequence[Document], shipped: Mapping[str, Document]) -> None:
    """Raise for the first file with which, behind those before it, the documents are refused."""
    for number, file in enumerate(files, start=1):
        try:
            contracts_of(documents[:number], shipped)
        except ContractRefused as refusal:
            raise ContractRefused(f"{file}: {refusal}") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if (twice := member_twice(pairs)) is not None:
        raise ValueError(f"the key {twice} occurs twice")
    return dict(pairs)


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no number")
