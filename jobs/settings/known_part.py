"""Reads a configuration that another version may have stored: what this version does not know of it is left out.

For what shows or checks beforehand. What bills or corrects reads with `jobs.runtime.stored_config`, which refuses.
"""

from __future__ import annotations

from copy import deepcopy
from functools import reduce
from operator import getitem
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

Model = TypeVar("Model", bound=BaseModel)


def known_part(kind: type[Model], document: Any) -> tuple[Model, list[str]]:
    """The configuration, and the names of the keys that are left out. Raises ValidationError for other mistakes."""
    found, left_out = deepcopy(document), list[str]()
    while True:
        try:
            return kind.model_validate(found), left_out
        except ValidationError as refusal:
            problems = refusal.errors()
            unknown = [problem["loc"] for problem in problems if problem["type"] == "extra_forbidden"]
            if len(unknown) < len(problems):
                raise
            for *above, last in unknown:
                try:
                    del reduce(getitem, above, found)[last]
                except (LookupError, TypeError):
                    # A place within a choice of types is no place in the document.
                    raise refusal from None
            left_out += [".".join(map(str, place)) for place in unknown]
