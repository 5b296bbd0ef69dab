"""The contracts that Weir ships: the documents beside this file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from metering.contracts.keywords import Document


@cache
def shipped() -> Mapping[str, Document]:
    """The documents by the type of event that they describe."""
    documents = [json.loads(file.read_text()) for file in files(__package__).iterdir() if file.name.endswith(".json")]
    return {document["$id"]: document for document in sorted(documents, key=lambda document: str(document["$id"]))}
