"""Events of a type that had no contract when they came → what the first contract says of them that takes them.

Nobody was billed for them: the journal kept them as they were. When a contract of their type comes, the audit judges
them by it. Which contract judges a row is a pure function of the journal, so that no later one judges it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import polars as pl
import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from jobs.audit.recomputed import IS_CONTRACTED
from jobs.ingestion.judge import LOG_APPEND_TIME, Judge
from jobs.ingestion.kept_contracts import contracts_kept
from jobs.runtime.rules_in_force import read_history
from metering.contracts.model import Contract
from metering.words import BILLABLE

JUDGED_FROM = ("lsn", "topic", "partition", "offset", "key", "value", "type")
"""What is read of a row to judge it, beside what was known of it when it came."""


@dataclass(frozen=True)
class Later:
    """Contracts of types that some rows came before, in force from `first` on."""

    first: int
    contracts: Mapping[str, Contract]


@dataclass(frozen=True)
class LaterContracts:
    """The contracts that judge what came before them, in their order."""

    kept: tuple[Later, ...]

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self.kept)

    @property
    def types(self) -> list[str]:
        """Of which events."""
        return sorted({name for later in self.kept for name in later.contracts})

    @property
    def before(self) -> int:
        """The lsn before which all rows are that can be judged."""
        return self.kept[-1].first

    def takes(self, rows: pl.DataFrame, columns: Iterable[str]) -> pl.DataFrame:
        """Rows of the journal without a family (JUDGED_FROM, `columns`) → those that a contract takes (`columns`).

        The contract says what its fields are; what else is known of a row is what the journal says.
        """
        names, left, found = list(columns), rows, [rows.clear().select(columns)]
        for later in self.kept:
            asked = left.filter((pl.col("lsn") < later.first) & pl.col("type").is_in(list(later.contracts)))
            if asked.is_empty():
                continue
            judge = Judge(later.contracts)
            said = pl.DataFrame(judge.judge(_as_records(asked))).with_columns(asked["lsn"])
            taken = said.filter(pl.col("reason").is_null() & pl.col("family").is_in(list(BILLABLE)))
            fields = [name for name in ("family", *(field.name for field in judge.fields)) if name in names]
            known = asked.select(name for name in names if name not in fields)
            found.append(known.join(taken.select("lsn", *fields), on="lsn", how="inner").select(names))
            left = left.join(taken.select("lsn"), on="lsn", how="anti")
        return pl.concat(found, how="vertical_relaxed")


def later_contracts(journal: DeltaTable, position: int, sums: Mapping[str, str]) -> LaterContracts:
    """Contracts of types that did not always have one, of the rules that decided rows of the journal below `position`.

    `sums`: the column that each meter adds up, whose limits a contract is within.
    """
    history = [held for held in read_history(journal)[0] if held.first < position]
    kept = [(held.first, contracts_kept(held.rules, sums)) for held in history]
    ever = [set(contracts) for _, contracts in kept]
    late = set().union(*ever).difference(*(set.intersection(*ever),)) if ever else set()
    changed = [(first, after) for (_, before), (first, after) in pairwise(kept) if after != before]
    found = [
        Later(first, {name: contract for name, contract in contracts.items() if name in late and contract is not None})
        for first, contracts in changed
    ]
    return LaterContracts(tuple(later for later in found if later.contracts))


def with_contracted(rows: DataFrame, unknown: DataFrame, later: LaterContracts) -> DataFrame:
    """Requests and completions, and rows of the journal that had no family → both, IS_CONTRACTED says which are which.

    `unknown` has the columns of `rows` and JUDGED_FROM.
    """
    schema = to_arrow_schema(rows.schema)

    def taken(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from later.takes(pl.DataFrame(batch), schema.names).to_arrow().cast(schema).to_batches()

    judged = unknown.mapInArrow(taken, rows.schema)
    return rows.withColumn(IS_CONTRACTED, F.lit(False)).union(judged.withColumn(IS_CONTRACTED, F.lit(True)))


def _as_records(rows: pl.DataFrame) -> pa.Table:
    """As Kafka gave them, when they were judged first."""
    given = rows.select(
        *("key", "value", "topic", "partition", "offset"),
        pl.col("received_at").alias("timestamp"),
        pl.lit(LOG_APPEND_TIME, pl.Int32).alias("timestampType"),
        pl.lit(None, pl.Binary).alias("replay_mark"),
    )
    return given.to_arrow()
