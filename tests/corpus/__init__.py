"""Documents that must never stop a job: bad ones, each with the reason it gets, and odd ones that are valid.

They are made for a test that pretends to receive them at `RECEIVED_AT`; `dated` moves one to another day.
"""

from tests.corpus.bad import BAD_DOCUMENTS, TOO_LARGE
from tests.corpus.documents import RECEIVED_AT, BadDocument, GoodDocument, dated
from tests.corpus.good import GOOD_DOCUMENTS

__all__ = [
    "BAD_DOCUMENTS",
    "GOOD_DOCUMENTS",
    "RECEIVED_AT",
    "TOO_LARGE",
    "BadDocument",
    "GoodDocument",
    "dated",
]
