"""Which portal tokens were invalidated, as a server has read it last."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

EVERYBODY = "*"


@dataclass(frozen=True)
class Invalidations:
    """`generations` by account: tokens below it have ended.

    `token_ids`: of tokens that ended, each with the accounts of the keys that ended it, which end none of another one.
    """

    generations: Mapping[str, int] = field(default_factory=dict)
    token_ids: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def ends(self, account: str, token_id: str, generation: int) -> bool:
        """Whether a token of an account is one of them."""
        accounts = self.token_ids.get(token_id, frozenset())
        return generation < self.generations.get(account, 0) or EVERYBODY in accounts or account in accounts


def invalidations_of(rows: Iterable[Mapping[str, Any]]) -> Invalidations:
    """Of rows with account, token_id, of_accounts and generation."""
    generations: dict[str, int] = {}
    token_ids: dict[str, frozenset[str]] = defaultdict(frozenset)
    for row in rows:
        if row["account"]:
            generations[row["account"]] = row["generation"]
        else:
            named = row["of_accounts"]
            token_ids[row["token_id"]] |= {EVERYBODY} if named == EVERYBODY else frozenset(json.loads(named))
    return Invalidations(generations, token_ids)
