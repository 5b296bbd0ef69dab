"""Which rows of the journal are of people who were forgotten, and what stays of them. Pure.

`user_id` decides. A row whose fields were not read (it was rejected, or its type has no contract), and the first row of
a record with several events, may have a name in its documents: there every text of them is looked at.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import polars as pl

from jobs.journal.elements import is_of_several
from jobs.journal.families import family
from metering.contracts.unnest import COLUMN as ELEMENT
from metering.erasure import People, pseudonym, replaced, texts_in
from metering.vocabulary import Disposition

TRANSACTION = "erasures"
"""The transaction of the journal with the number of the newest erasure that its rows follow from here on."""
HEADERS = "record_headers"
DOCUMENTS = ("value", "key", HEADERS, "violation")
READ = ("lsn", "topic", "disposition", "family", "type", "account", "user_id", ELEMENT, *DOCUMENTS)
"""What must be read of a row."""
CHANGED = ("user_id", "value", "key", HEADERS, "violation")


def erased_violation(number: int) -> str:
    """What the violation of an erased dead letter is."""
    return f"erased by erasure {number}: the record is no longer there, and cannot be sent again"


def is_erased_violation(violation: str | None) -> bool:
    """Whether a dead letter says so."""
    return violation is not None and violation.startswith("erased by erasure ")


def erased(rows: pl.DataFrame, people: People, catalog: Iterable[str] = ()) -> pl.DataFrame:
    """Rows of the journal (READ, as far as they are there) → those of CHANGED, with `lsn`, that must be different.

    Of an accepted row its typed columns stay, but for `user_id`; `key` becomes the account, `value` null. One without a
    family keeps its value, in which another name stands (null where it cannot be written again): a later contract may
    have billed it. A rejected one keeps no document. `catalog`: topics whose records are of no user.
    """
    of_events = rows.filter(~pl.col("topic").is_in(list(catalog)))
    lacking = [name for name in ("family", HEADERS) if name not in of_events.columns]
    held = of_events.with_columns(pl.lit(None, pl.String).alias(name) for name in lacking)
    of_accounts = concerned(held, people.accounts)
    return (
        pl.concat([_by_user(of_accounts, people), _by_documents(of_accounts, people)])
        .unique("lsn", keep="first")
        .sort("lsn")
    )


def concerned(rows: pl.DataFrame, accounts: Iterable[str]) -> pl.DataFrame:
    """Those rows of the journal that may be of people of these accounts: of none, those whose documents decide."""
    is_open = pl.col("account").is_null() & _is_doubtful(rows)
    return rows.filter(is_open | pl.col("account").is_in(list(accounts)))


def _is_doubtful(rows: pl.DataFrame) -> pl.Expr:
    is_rejected = pl.col("disposition") == Disposition.REJECTED
    return is_rejected | family().is_null() | is_of_several(rows.schema)


SCHEMA = {
    "lsn": pl.Int64(),
    "user_id": pl.String(),
    "value": pl.Binary(),
    "key": pl.Binary(),
    HEADERS: pl.String(),
    "violation": pl.String(),
}
"""Of `erased`."""


def _by_user(rows: pl.DataFrame, people: People) -> pl.DataFrame:
    users = rows.select("account", "user_id").drop_nulls().unique()
    found = [
        (account, user_id, number)
        for (account,), names in users.group_by("account")
        for user_id, number in people.numbers(str(account), names["user_id"].to_list()).items()
    ]
    named = pl.DataFrame(found, schema={"account": pl.String, "user_id": pl.String, "number": pl.Int64}, orient="row")
    theirs = rows.join(named, on=["account", "user_id"], how="inner")
    is_rejected = pl.col("disposition") == Disposition.REJECTED
    return theirs.select(
        pl.col("lsn").cast(pl.Int64),
        (pl.lit("erased-") + pl.col("number").cast(pl.String)).alias("user_id"),
        pl.lit(None, pl.Binary).alias("value"),
        pl.when(pl.col("key").is_not_null()).then(pl.col("account").cast(pl.Binary)).alias("key"),
        pl.lit(None, pl.String).alias(HEADERS),
        pl.when(is_rejected)
        .then(pl.col("number").map_elements(erased_violation, return_dtype=pl.String))
        .alias("violation"),
    )


def _by_documents(rows: pl.DataFrame, people: People) -> pl.DataFrame:
    doubtful = rows.filter(_is_doubtful(rows))
    # Few rows, and each has another document: no expression of Polars reads them.
    changed = [row for row in doubtful.iter_rows(named=True) for row in _changed(row, people)]
    return pl.DataFrame(changed, schema=SCHEMA, orient="row")


def _changed(row: Mapping[str, Any], people: People) -> Iterator[dict[str, Any]]:
    texts = {text for name in DOCUMENTS for text in _texts(name, row[name])}
    accounts = [row["account"]] if row["account"] is not None else sorted(texts & {*people.accounts})
    found: dict[str, int] = {}
    for account in accounts:
        found |= {name: n for name, n in people.numbers(account, texts).items() if name not in found}
    if not found:
        return
    number = min(found.values())
    is_rejected = row["disposition"] == Disposition.REJECTED
    is_unread = not is_rejected and row["family"] is None
    yield {
        "lsn": row["lsn"],
        "user_id": row["user_id"],
        "value": _with_pseudonyms(row["value"], found) if is_unread else None,
        "key": None if row["key"] is None or row["account"] is None else row["account"].encode(),
        HEADERS: None,
        "violation": erased_violation(number) if is_rejected else None,
    }


def _with_pseudonyms(value: bytes | None, found: Mapping[str, int]) -> bytes | None:
    """None, too, where it cannot be written again, as one that is nested too deeply: the name must not stay."""
    if value is None:
        return None
    try:
        text = value.decode()
        for name, number in found.items():
            text = replaced(text, name, pseudonym(number))
    except (ValueError, RecursionError):
        return None
    return text.encode()


def _texts(name: str, document: bytes | str | None) -> set[str]:
    if document is None:
        return set()
    text = document.decode(errors="replace") if isinstance(document, bytes) else document
    if name == HEADERS:
        return {found for value in _header_values(text) for found in {value, *texts_in(value)}}
    return {text, *texts_in(text)}


def _header_values(text: str) -> Iterator[str]:
    for member in json.loads(text):
        try:
            yield base64.b64decode(member.get("value") or "").decode(errors="replace")
        except binascii.Error:
            continue
