"""Which portal tokens a key ends, as Postgres keeps it."""

from __future__ import annotations

import json
from hashlib import sha256

import psycopg
from psycopg.rows import dict_row

from jobs.queries.portal_invalidations import invalidate, live_invalidations
from metering.portal_invalidations import invalidations_of


def test_a_key_of_many_accounts_ends_a_token_by_its_id(database: str) -> None:
    """Their names are hard to compress, as those of real accounts: an index has no room for them."""
    accounts = [sha256(b"%d" % number).hexdigest() for number in range(300)]
    with psycopg.connect(database, row_factory=dict_row) as connection:
        connection.execute("SELECT set_config('weir.accounts', %s, true)", [json.dumps(accounts)])
        for _ in range(2):
            invalidate(connection, "key", token_id="token")
        found = list(live_invalidations(connection))
    assert len(found) == 1
    ended = invalidations_of(found)
    assert all(ended.ends(account, "token", 0) for account in accounts)
    assert not ended.ends("another", "token", 0)
