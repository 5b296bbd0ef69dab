"""Portal tokens that were invalidated: all of an account that were made before, or one by its id."""

from __future__ import annotations

from collections.abc import Iterator

from jobs.billing_progress import Row
from jobs.queries.reading import Database

MAX_LIVE = 10_000
"""Rows of a key, all of which servers read every two seconds; of each account there is one."""
_LIVE = "invalidated_at > clock_timestamp() - interval '25 hours'"
"""A token holds for a day at most: those that were made before have expired."""
_LIST = f"SELECT account, token_id, of_accounts, generation FROM portal_invalidations WHERE {_LIVE}"
# Of the key alone: those of another one, which may be a customer's, must not keep it from ending tokens.
_COUNT = f"""
SELECT count(*) AS live
FROM (SELECT FROM portal_invalidations WHERE {_LIVE} AND key_id = %s LIMIT {MAX_LIVE}) AS live
"""
_GENERATION = "SELECT generation FROM portal_invalidations WHERE account = %s"
# The row's lock puts those of an account in order: each is of a higher generation than any token that was made before.
_OF_ACCOUNT = """
INSERT INTO portal_invalidations AS p (account, key_id) VALUES (%s, %s)
ON CONFLICT (account, token_id, accounts_digest) DO UPDATE SET
    generation = p.generation + 1, key_id = EXCLUDED.key_id, invalidated_at = clock_timestamp()
"""
_OF_TOKEN = """
INSERT INTO portal_invalidations (token_id, of_accounts, accounts_digest, key_id)
SELECT %s, accounts, encode(sha256(convert_to(accounts, 'UTF8')), 'hex'), %s
FROM current_setting('weir.accounts') AS accounts
ON CONFLICT (account, token_id, accounts_digest) DO NOTHING
"""


class TooManyInvalidations(Exception):
    """The key has stored as many in a day as it may."""


def live_invalidations(database: Database) -> Iterator[Row]:
    """Keys account, token_id, of_accounts and generation: a row has an account, or a token's id."""
    yield from database.execute(_LIST)


def generation_of(database: Database, account: str) -> int:
    """How often the tokens of an account were invalidated: a new token has it, and one below it holds no more."""
    row = database.execute(_GENERATION, [account]).fetchone()
    return 0 if row is None else int(row["generation"])


def invalidate(database: Database, key_id: str, *, account: str | None = None, token_id: str | None = None) -> None:
    """End all tokens of an account, or the one with an id if it is of an account that `database` may see.

    Raises TooManyInvalidations.
    """
    counted = database.execute(_COUNT, [key_id]).fetchone()
    if counted is not None and counted["live"] >= MAX_LIVE:
        raise TooManyInvalidations
    if account is not None:
        database.execute(_OF_ACCOUNT, [account, key_id])
    else:
        database.execute(_OF_TOKEN, [token_id, key_id])
