"""Which quantities of an event are part of others: by its contract, or by a convention for its source.

The row keeps its convention (`quantity_includes`), so later configuration does not change it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import polars as pl
import pyarrow as pa

from jobs.ingestion.source_patterns import is_listed
from jobs.ingestion.violations import Rule
from jobs.runtime.effective_rules import Rules
from metering.contracts.includes import COLUMN, INCLUDES, Includes, includes_of, text_of
from metering.contracts.model import Contract, Field, Kind
from metering.contracts.shipped import shipped
from metering.vocabulary import Reason

FIELD = pa.field(COLUMN, pa.string())
NUMBERS = (Kind.INTEGER, Kind.DECIMAL)
_SUM = pl.Decimal(38, 6)


@dataclass(frozen=True)
class Convention:
    """What events of some sources report, overriding the contract of their type."""

    source: str
    """A pattern (`listed`)."""
    type: str | None
    """None: of every type."""
    includes: Includes


def stored_conventions(rules: Rules) -> tuple[Convention, ...]:
    """The conventions of sources under rules of ingestion (`IngestionConfig.deciding`)."""
    return tuple(
        Convention(rule["source"], rule["type"], includes_of(rule["includes"])) for rule in rules.get("conventions", ())
    )


class Conventions:
    """The first convention of an event's source and type holds, else that of its contract."""

    def __init__(self, of_sources: Sequence[Convention] = ()) -> None:
        self._of_sources = tuple(of_sources)

    def among(self, events: pl.DataFrame, contract: Contract) -> tuple[pl.Series, list[Includes]]:
        """Events (column `source`) of a contract → the number of the convention of each, and the conventions."""
        of_type = [convention for convention in self._of_sources if convention.type in (None, contract.type)]
        found = [contract.includes, *(convention.includes for convention in of_type)]
        number = pl.Series([0], dtype=pl.Int32).new_from_index(0, len(events))
        for place, convention in reversed(list(enumerate(of_type, start=1))):
            its_own = pl.Series([place], dtype=pl.Int32).new_from_index(0, len(events))
            number = its_own.zip_with(is_listed(events["source"], [convention.source]), number)
        return number, found


def refuse_unknown_quantities(of_sources: Iterable[Includes], contracts: Mapping[str, Contract]) -> None:
    """Raises ValueError for a column that no contract gives as a number, and that no shipped contract speaks of."""
    given = {field.column for contract in contracts.values() for field in contract.fields if field.kind in NUMBERS}
    spoken_of = {name for document in shipped().values() for name in _names(includes_of(document.get(INCLUDES, {})))}
    for includes in (*(contract.includes for contract in contracts.values()), *of_sources):
        for name in _names(includes):
            if name not in given | spoken_of:
                raise ValueError(
                    f"{INCLUDES} names {name}, which no contract gives as a number; it can name "
                    f"{', '.join(sorted(given | spoken_of))}"
                )


def _names(includes: Includes) -> list[str]:
    return [name for whole, parts in includes for name in (whole, *parts)]


def rules_of(contract: Contract, number: pl.Series, found: Sequence[Includes]) -> Iterator[Rule]:
    """The rule that parts together are no more than their whole; an unreported whole sets no limit.

    A part below 0 counts as absent, as it does for meters: it makes no room for others.
    """
    for place, whole, parts in _known(contract, found):
        total = reduce(lambda left, other: left + other, (pl.max_horizontal(_reported(part), 0) for part in parts))
        names = " + ".join(part.pointer for part in parts)
        yield Rule(
            ((pl.lit(number) == place) & (total > _reported(whole))).fill_null(value=False),
            Reason.INCONSISTENT_QUANTITIES,
            f"{contract.type} {whole.pointer}",
            f"at least {names}, part of it by x-weir-includes",
            whole.pointer,
            pl.col(whole.pointer),
            whole.kind,
        )


def column_of(contract: Contract, number: pl.Series, found: Sequence[Includes]) -> pl.Expr:
    """The journal's column: the event's convention, where it reports any part of another quantity."""
    text = pl.lit(None, pl.String)
    for place in range(len(found)):
        parts = [part for known, _, of_whole in _known(contract, found) if known == place for part in of_whole]
        if parts:
            is_reported = pl.any_horizontal((_reported(part) > 0).fill_null(value=False) for part in parts)
            text = pl.when((pl.lit(number) == place) & is_reported).then(pl.lit(text_of(found[place]))).otherwise(text)
    return text.alias(COLUMN)


def _known(contract: Contract, found: Sequence[Includes]) -> list[tuple[int, Field, list[Field]]]:
    """(Number of the convention, field of a whole, those of its parts), as far as the contract has them."""
    fields: Mapping[str, Field] = {field.column: field for field in contract.fields if field.kind in NUMBERS}
    listed = [(place, whole, parts) for place, includes in enumerate(found) for whole, parts in includes]
    known = [(place, fields.get(whole), [fields[p] for p in parts if p in fields]) for place, whole, parts in listed]
    return [(place, whole, parts) for place, whole, parts in known if whole is not None and parts]


def _reported(field: Field) -> pl.Expr:
    return pl.col(field.pointer).cast(_SUM)
