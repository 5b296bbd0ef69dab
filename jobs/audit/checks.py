"""journal, usage and Postgres → the checks of docs/design.md, section 8, each with how much it examined."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import polars as pl

from jobs.audit.bills.months import wrong_months
from jobs.audit.bills.proof import Proof, Span, prove_sessions
from jobs.audit.check import Check
from jobs.audit.compare.columns import Wrong
from jobs.audit.compare.differences import Kind
from jobs.audit.recompute.expected import OUTCOME, Pinned
from jobs.audit.recompute.outcomes import Outcomes
from jobs.audit.tables.database import Sessions, Stored
from jobs.audit.tables.retained import RetainedRows
from jobs.audit.tables.versions import Versions
from jobs.streams import Table


def numbers(retained: Mapping[Table, RetainedRows], made: Stored, doubled: Collection[Table]) -> Check:
    """I1: each lsn of journal and usage is there, and no reader is beyond their ends.

    `doubled`: tables that have as many rows as they must, and not those.
    """
    broken = []
    for table, rows in retained.items():
        if rows.missing:
            broken.append(f"{table}: {rows.missing} rows are missing between {rows.first} and {rows.next}")
        elif table in doubled:
            broken.append(f"{table}: of the rows between {rows.first} and {rows.next} some are lost and others doubled")
    read = {Table.JOURNAL: made.sessions.position, Table.USAGE: made.billed.position}
    broken += [
        f"{table} ends before lsn {rows.next}, but was read up to {read[table] - 1}: rows are gone"
        for table, rows in retained.items()
        if rows.next < read[table]
    ]
    sound = "each lsn of journal and usage exists once, except on days that `weir retain` has removed"
    count = max(sum(abs(rows.missing) for rows in retained.values()), len(broken))
    return Check("I1", sum(rows.rows for rows in retained.values()), count, (broken or [sound])[0])


def no_usage(made: Stored) -> Iterator[Check]:
    """Where there is no usage, or no journal: nothing was made of them yet, or they are gone."""
    read = max(made.billed.position, made.sessions.position) - 1
    text = f"journal or usage is gone, and {read} rows of it were read" if read else "there is no usage yet"
    for name in ("I1", "I4", "I5", "I6", "I8", "I10", "I12"):
        yield Check(name, 0, read if name == "I1" else 0, text)


def streamed(found: Outcomes, pinned: Pinned, differing: Sequence[str]) -> Iterator[Check]:
    """I4 and I10: what the stream made of the journal; `summary`: other differences from the journal."""
    left_out = "" if pinned.since is None else f"; not what has a row from before {pinned.since}"
    if pinned.known_from > 1:
        left_out += f"; nor what an older release decided by rules that it did not keep, before lsn {pinned.known_from}"
    is_otherwise = pl.col("kind") == Kind.OTHERWISE
    for name, number, part, sound in (
        (
            "I4",
            found.rows,
            found.wrong.filter(~is_otherwise),
            "each request and completion is in an outcome or waits",
        ),
        ("I10", found.outcomes, found.wrong.filter(is_otherwise), "each outcome is what follows from the journal"),
    ):
        broken = part.unique(OUTCOME, keep="first", maintain_order=True)
        sentences = [sentence(row) for row in broken.head(1).iter_rows(named=True)] + [
            *(differing if name == "I10" else ())
        ]
        count = len(broken) + (len(differing) if name == "I10" else 0)
        yield Check(name, number, count, (sentences[0] if sentences else sound) + left_out)


def sessions(versions: Versions, made: Sessions) -> Check:
    """I5: the sessions of each user equal those that the gaps cut from their requests."""
    found = prove_sessions(versions, made)
    sound = "each request with a user is in one of the user's sessions, which begin and end where the gaps are"
    return Check("I5", found.examined, found.found, found.first or sound)


def windows(proof: Proof, span: Span, unbilled: int, beside: Wrong = Wrong()) -> Check:  # noqa: B008 -- frozen
    """I6: signed usage is what windows, stragglers and days have, in each of their columns; `unbilled`: nothing yet.

    `beside`: `price_ladders`, by which bills price tiers, is what prices say; hours and months are the sums of windows
    and days.
    """
    sums = proof.sums + beside
    behind = f"; {unbilled} rows of usage are not billed yet, and not compared" if unbilled > 0 else ""
    sound = "usage adds up to the windows with the stragglers left out, the days, hours and months, in each column"
    return Check("I6", sums.examined, sums.found, (sums.first or sound) + span.left_out + behind)


def months(made: Stored, pinned: Pinned) -> Check:
    """I12: the month of each row's day is the readers' month."""
    found = wrong_months(made.months, pinned.accounts)
    sound = "each day belongs to the month in which it is shown"
    return Check("I12", found.examined, found.found, found.first or sound)


def corrections(found: Outcomes, proof: Proof, corrected: Mapping[str, int]) -> Check:
    """I8: what was found later is corrected (rows, by cause), and each change of a closed window is a row."""
    faults = found.faults.unique(OUTCOME, keep="first", maintain_order=True)
    broken = [*(sentence(row) for row in faults.head(1).iter_rows(named=True)), proof.corrections.first]
    put = sum(corrected.values())
    expected = max(found.changes, put)
    causes = corrected or found.causes
    summary = ", ".join(f"{count} rows of cause {cause}" for cause, count in sorted(causes.items()))
    summary += "" if corrected or not summary else " would correct what was found later"
    text = next(filter(None, broken), summary) or "what was found later is corrected, and each correction is explained"
    wrong = len(faults) + proof.corrections.found
    return Check("I8", found.outcomes + proof.corrections.examined, wrong + expected, text, expected, put)


def sentence(row: dict[str, Any]) -> str:
    """One of DIFFERENCES in words."""
    place = f"request {row['request_id']} of {row['account']} (lsn {row['request_lsn']}, {row['completion_lsn']})"
    match row["kind"]:
        case Kind.LOST | Kind.PHANTOM:
            return f"{place} is {row['kind']}"
        case Kind.COUNTED:
            return f"{place} is there {row['found']} times, last in usage {row['usage_lsn']}"
        case Kind.REVERSAL:
            return f"{place}: usage {row['usage_lsn']} takes back, or replaces, something else than what it names"
    return f"{place}: {row['column']} is {row['found']} instead of {row['expected']}, in usage {row['usage_lsn']}"
