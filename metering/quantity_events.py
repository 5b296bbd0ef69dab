"""Events of the family `quantity`: each is its own outcome, known by its identity, never one of several reports.

Their request id is derived from the identity, so code that works by request id needs no special case.
"""

from __future__ import annotations

import re

PREFIX = "quantity:"
"""The request id is this and the identity (`fingerprints.identities`) in hexadecimal."""
PATTERN = r"\Aquantity:[0-9a-f]{32}\z"
"""Request ids of this form no other event may have. A regular expression of Rust, as Polars takes it."""
_FORM = re.compile(r"quantity:[0-9a-f]{32}")


def is_of_quantity(request_id: str) -> bool:
    """Whether it was made of an event's identity."""
    return _FORM.fullmatch(request_id) is not None
