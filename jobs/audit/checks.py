"""journal, usage and what Postgres holds → the checks of docs/design.md, section 8, each with how much it examined."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import date
from typing import Any

import polars as pl

from jobs.audit.check import Check
from jobs.audit.differences import Kind
from jobs.audit.kept import Kept
from jobs.audit.outcomes import Outcomes
from jobs.audit.pinned import Asked
from jobs.audit.proved import Proof, Span, proved, proved_sessions
from jobs.audit.recomputed import OUTCOME, Pinned
from jobs.audit.stored import Billed, Sessions
from jobs.audit.versions import Versions
from jobs.streams import Table


def numbers(held: Mapping[Table, Kept]) -> Check:
    """I1: each lsn of journal and usage is there."""
    missing = [
        f"{table}: {one.missing} rows are missing between {one.first} and {one.next}"
        for table, one in held.items()
        if one.missing
    ]
    sound = "each lsn of journal and usage is there, but for the days that `weir retain` has removed"
    many = sum(abs(one.missing) for one in held.values())
    return Check("I1", sum(one.rows for one in held.values()), many, missing[0] if missing else sound)


def streamed(found: Outcomes, pinned: Pinned) -> Iterator[Check]:
    """I4 and I10: what the stream made of the journal."""
    left_out = "" if pinned.since is None else f"; not what has a row from before {pinned.since}"
    is_otherwise = pl.col("kind") == Kind.OTHERWISE
    for name, number, part, sound in (
        (
            "I4",
            found.rows,
            found.wrong.filter(~is_otherwise),
            "each request and completion is in an outcome or waits",
        ),
        ("I10", found.outcomes, found.wrong.filter(is_otherwise), "each outcome says what the journal makes of it"),
    ):
        broken = part.unique(OUTCOME, keep="first", maintain_order=True)
        says = [sentence(row) for row in broken.head(1).iter_rows(named=True)]
        yield Check(name, number, len(broken), (says[0] if says else sound) + left_out)


def sessions(versions: Versions, made: Sessions) -> Check:
    """I5: the sessions of each user are those that the gaps cut their requests into."""
    found = proved_sessions(versions, made)
    sound = "each request with a user is in one session of theirs, which begins and ends where the gaps say"
    return Check("I5", found.examined, found.found, found.first or sound)


def billed(versions: Versions, made: Billed, kept_since: date | None, asked: Asked) -> Proof:
    """What billing has made beside what it must have made, as far as usage is there."""
    return proved(versions, made, Span.of(asked, kept_since))


def windows(proof: Proof, kept_since: date | None) -> Check:
    """I6: signed usage is what windows, stragglers and days have."""
    left_out = "" if kept_since is None else f"; not before {kept_since}, of which usage was removed"
    says = (
        proof.sums.first or "signed usage is windows, stragglers that are in none, and days, in each of their columns"
    )
    return Check("I6", proof.sums.examined, proof.sums.found, says + left_out)


def standing(found: Outcomes, proof: Proof, corrected: Mapping[str, int]) -> Check:
    """I8: what was found later is put right (rows, by cause), and each change of a closed window is a row."""
    faults = found.faults.unique(OUTCOME, keep="first", maintain_order=True)
    told_wrong = [*(sentence(row) for row in faults.head(1).iter_rows(named=True)), proof.corrections.first]
    put = sum(corrected.values())
    expected = max(found.changes, put)
    causes = corrected or found.causes
    told = ", ".join(f"{many} rows of cause {cause}" for cause, many in sorted(causes.items()))
    told += "" if corrected or not told else " would put right what was found later"
    says = next(filter(None, told_wrong), told) or "what was found later is put right, and each correction is explained"
    wrong = len(faults) + proof.corrections.found
    return Check("I8", found.outcomes + proof.corrections.examined, wrong + expected, says, expected, put)


def sentence(row: dict[str, Any]) -> str:
    """One of DIFFERENCES in words."""
    place = f"request {row['request_id']} of {row['account']} (lsn {row['request_lsn']}, {row['completion_lsn']})"
    match row["kind"]:
        case Kind.LOST | Kind.PHANTOM:
            return f"{place} is {row['kind']}"
        case Kind.COUNTED:
            return f"{place} is there {row['found']} times, last in usage {row['usage_lsn']}"
    return f"{place}: {row['column']} is {row['found']} instead of {row['expected']}, in usage {row['usage_lsn']}"
