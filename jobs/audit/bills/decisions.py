"""Decisions about single rows: stragglers by the rules; a correcting row inherits its row's decision."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

import polars as pl

from jobs.audit.bills.holds import JOURNALED
from metering.vocabulary import BILLED, Decision, UsageCause

IS_BILLED = pl.col("decision").is_null() | pl.col("decision").is_in([decision.value for decision in BILLED])
"""Whether a row is in its window: `decision` is null for rows that are no straggler and correct none."""

ENTRY = ("usage_lsn", "meter")
"""The key of a single row of usage."""
DECIDED = pl.Schema({"usage_lsn": pl.Int64(), "meter": pl.String(), "decision": pl.String()})
CORRECTING = pl.Schema(
    {
        "usage_lsn": pl.Int64(),
        "meter": pl.String(),
        "sign": pl.Int32(),
        "cause": pl.String(),
        "named": pl.List(pl.Int64()),
    }
)
"""An entry that corrects others, and the rows of usage that it negates (sign -1) or replaces."""
_BY_WEIGHT = [decision.value for decision in Decision]


@dataclass(frozen=True)
class Decisions:
    """What `sums` of some rows cannot know: what is `inherited_decisions` (DECIDED), what people said (JOURNALED), and
    billing's F.
    """

    inherited: pl.DataFrame
    journaled: pl.DataFrame
    frontier: datetime | None


NOTHING_DECIDED = Decisions(pl.DataFrame(schema=DECIDED), pl.DataFrame(schema=JOURNALED), None)


def inherited_decisions(correcting: pl.DataFrame, stored: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """CORRECTING of all usage that corrects, and stragglers as they are stored (pieces of DECIDED) → DECIDED of these.

    Where a row replaces several, the first decision by the order of `Decision` applies; a row that replaces on-time
    usage is billed, and inherits nothing. Stored stragglers are compared with usage, too, so a wrong start is found
    there.
    """
    links = correcting.explode("named").drop_nulls("named").select(CORRECTING.names())
    of_others = [_of_corrected_rows(piece, links) for piece in stored] if len(links) else []
    known = _weighed(pl.concat([pl.DataFrame(schema=DECIDED), *of_others]))
    while True:
        following = links.join(known, left_on=["named", "meter"], right_on=ENTRY).select(*ENTRY, "weight")
        more = pl.concat([known, following]).group_by(ENTRY).agg(pl.min("weight"))
        if len(more) == len(known) and more["weight"].sum() == known["weight"].sum():
            break
        known = more
    own = more.join(links.select(ENTRY).unique(), on=ENTRY, how="semi").sort(ENTRY)
    words = dict(enumerate(_BY_WEIGHT))
    weighed = own.select(*ENTRY, decision=pl.col("weight").replace_strict(words, return_dtype=pl.String))
    return weighed.join(_on_time(correcting, links, weighed), on=ENTRY, how="anti", maintain_order="left")


def _on_time(correcting: pl.DataFrame, links: pl.DataFrame, decided: pl.DataFrame) -> pl.DataFrame:
    """The entries (ENTRY) that no straggler decides alone: what came on time and was negated, and what replaces it.

    A report that replaces another does with all that it reports; anything else meter by meter.
    """
    undecided = correcting.join(decided, on=ENTRY, how="anti")
    negated = links.filter(pl.col("sign") < 0).join(undecided, on=ENTRY, how="semi")
    known = pl.concat([undecided.select(ENTRY), negated.select("meter", usage_lsn="named").select(ENTRY)]).unique()
    whole = links.filter((pl.col("cause") == UsageCause.RESTATED.value) & (pl.col("sign") > 0))
    while True:
        alone = links.join(known, left_on=["named", "meter"], right_on=ENTRY, how="semi")
        together = whole.join(known, left_on="named", right_on="usage_lsn", how="semi")
        more = pl.concat([known, alone.select(ENTRY), together.select(ENTRY)]).unique()
        if len(more) == len(known):
            return known
        known = more


def _of_corrected_rows(piece: pl.DataFrame, links: pl.DataFrame) -> pl.DataFrame:
    """What is decided of rows that something corrects, and that correct nothing that is still there."""
    named = piece.join(links, left_on=ENTRY, right_on=["named", "meter"], how="semi")
    return named.join(links, on=ENTRY, how="anti")


def _weighed(decided: pl.DataFrame) -> pl.DataFrame:
    weights = {word: number for number, word in enumerate(_BY_WEIGHT)}
    return decided.select(*ENTRY, weight=pl.col("decision").replace_strict(weights, return_dtype=pl.Int64))
