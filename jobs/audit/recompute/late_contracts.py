"""Events whose type had no contract when they came → the row that the first contract accepting them gives.

They were not billed: the journal kept them as they were. When a contract of their type comes, the audit validates
them by it. Which contract takes a row is a pure function of the journal, so no later one takes it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import polars as pl
import pyarrow as pa
from deltalake import DeltaTable

from jobs.audit.recompute.expected import IS_CONTRACTED, IS_SENT_AGAIN, Pinned
from jobs.ingestion.conformance import REQUEST_ID
from jobs.ingestion.conventions import Convention, stored_conventions
from jobs.ingestion.stored_contracts import stored_contracts
from jobs.ingestion.validator import LOG_APPEND_TIME, EventValidator
from jobs.journal.elements import is_event
from jobs.journal.families import family
from jobs.runtime.delta.pieces import Wanted
from jobs.runtime.effective_rules import EffectiveRules, Rules, read_history, rules_at
from jobs.runtime.kafka.marks import MARKS
from jobs.settings.stored_meters import conditions_stored, of_period_stored, once_stored, restored
from metering.contracts.model import Contract
from metering.contracts.unnest import COLUMN
from metering.meters import columns_of
from metering.vocabulary import BILLABLE, Disposition, Family

VALIDATED_FROM = ("lsn", "topic", "partition", "offset", "received_at", "key", "value", "type")
"""What is read of a row to validate it, beside what was known of it when it came."""
EVENT = ("lsn", "type", "identity", "occurred_at")
"""What is read of a row to know its event again where a contract makes another request of it."""
READ_OF_VALIDATED = (*EVENT, "disposition", "family", COLUMN)
"""What is read of all rows to find the events (EVENT) that `LaterContracts.validated` gives."""


@dataclass(frozen=True)
class Later:
    """Contracts of types that some rows came before, in force from `first` on."""

    first: int
    contracts: Mapping[str, Contract]
    conventions: Sequence[Convention] = ()


@dataclass(frozen=True)
class LaterContracts:
    """The contracts that validate what came before them, in their order."""

    later: tuple[Later, ...]

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self.later)

    @property
    def types(self) -> list[str]:
        """Of which events."""
        return sorted({name for later in self.later for name in later.contracts})

    @property
    def types_of_other_requests(self) -> list[str]:
        """Of which an event, sent again under another of the contracts, is of another request."""
        found: dict[str, set[Any]] = {}
        for later in self.later:
            for name, contract in later.contracts.items():
                found.setdefault(name, set()).add(_request_of(contract))
        return sorted(name for name, requests in found.items() if len(requests) > 1)

    @property
    def before(self) -> int:
        """The lsn before which all rows are that can be validated."""
        return self.later[-1].first

    @property
    def wanted(self) -> Wanted:
        """Which rows of the journal they may take."""
        types, before = self.types, self.before

        def is_unknown(rows: pl.DataFrame) -> pl.Series:
            held = rows if "family" in rows.columns else rows.with_columns(pl.lit(None, pl.String).alias("family"))
            is_accepted = pl.col("disposition") == Disposition.ACCEPTED.value
            is_early = (pl.col("lsn") < before) & pl.col("type").is_in(types)
            return held.select((is_accepted & is_early & family().is_null()).fill_null(value=False)).to_series()

        return Wanted(("lsn", "type", "family", "disposition"), is_unknown)

    def takes(self, rows: pl.DataFrame, columns: Iterable[str]) -> pl.DataFrame:
        """Rows of the journal without a family (VALIDATED_FROM, `columns`) → those that a contract takes (`columns`).

        The contract says what its fields are; what else is known of a row is what the journal says. One that unnests
        takes none, because a row of the journal stays one; nor does any that comes later, which would bill the event
        beside its elements where it was sent once more.
        """
        names, remaining = list(columns), rows
        kinds = rows.select(names).schema
        found = [rows.clear().select(names)]
        for later in self.later:
            is_before = pl.col("lsn") < later.first
            contracts = {name: contract for name, contract in later.contracts.items() if contract.unnest is None}
            remaining = remaining.filter(~(is_before & pl.col("type").is_in(list(later.contracts.keys() - contracts))))
            candidates = remaining.filter(is_before & pl.col("type").is_in(list(contracts)))
            if candidates.is_empty():
                continue
            validator = EventValidator(contracts, of_sources=later.conventions)
            validated = pl.DataFrame(validator.validate(_as_records(candidates))).with_columns(candidates["lsn"])
            taken = validated.filter(pl.col("reason").is_null() & pl.col("family").is_in(list(BILLABLE)))
            fields = [name for name in ("family", *(field.name for field in validator.fields)) if name in names]
            known = candidates.select(name for name in names if name not in fields)
            found.append(known.join(taken.select("lsn", *fields), on="lsn", how="inner").select(names).cast(kinds))
            remaining = remaining.join(taken.select("lsn"), on="lsn", how="anti")
        return pl.concat(found)

    def validated(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Rows of the journal (READ_OF_VALIDATED) → those (EVENT) of `types_of_other_requests` that a contract took
        when they came. Of an event with elements the first represents all: it has the identity of the event.
        """
        is_billed = (pl.col("disposition") == Disposition.ACCEPTED.value) & family().is_in(list(BILLABLE))
        is_of_other_requests = pl.col("type").is_in(self.types_of_other_requests)
        return rows.filter(is_billed & is_of_other_requests & is_event(rows.schema)).select(EVENT)

    def taken(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Rows of the journal without a family (VALIDATED_FROM, EVENT) → those (EVENT) of the same types that one
        takes now.
        """
        is_of_other_requests = pl.col("type").is_in(self.types_of_other_requests)
        return self.takes(rows.filter(is_of_other_requests), EVENT)


def sent_again(events: pl.DataFrame) -> pl.Series:
    """Events (EVENT, IS_CONTRACTED) → the lsns of those that a later contract accepted and another replaces.

    That is the same event of the same type and day (UTC), as ingestion finds repeats that are not of the last hour.
    Events validated on arrival win over those validated later; ingestion lets it pass, because nobody had
    been billed for the first. Which request it is of says nothing: a contract that begins to unnest makes others of it.
    """
    event = ("type", "identity", pl.col("occurred_at").dt.date())
    known = events.filter(pl.col("identity").is_not_null()).sort(IS_CONTRACTED, "lsn")
    is_again = pl.col(IS_CONTRACTED) & (pl.col("lsn") != pl.col("lsn").first().over(event))
    return known.filter(is_again)["lsn"].sort()


def later_contracts(journal: DeltaTable, pinned: Pinned) -> LaterContracts:
    """Contracts of types that did not always have one, from the rules of journal rows that joins has read.

    Rules with a meter, or conditions of one, that joins has not recorded yet are passed over: joins was started later,
    has had no outcome since, or never was started with it. Rows that were added meanwhile would be counted without it,
    for ever.
    """
    sums = pinned.sums
    known = [effective for effective in read_history(journal)[0] if effective.first < pinned.position]
    history = [
        effective
        for number, effective in enumerate(known)
        if _has_meters(effective, pinned) and _has_conditions(effective, known[number + 1 :], pinned)
    ]
    by_rules = [(effective, stored_contracts(effective.rules, sums)) for effective in history]
    ever = [set(contracts) for _, contracts in by_rules]
    late = set().union(*ever).difference(*(set.intersection(*ever),)) if ever else set()
    changed = [(effective, after) for (_, before), (effective, after) in pairwise(by_rules) if after != before]
    found = [
        Later(
            effective.first,
            {name: contract for name, contract in contracts.items() if name in late and contract is not None},
            stored_conventions(effective.rules),
        )
        for effective, contracts in changed
    ]
    return LaterContracts(tuple(later for later in found if later.contracts))


def _has_meters(effective: EffectiveRules, pinned: Pinned) -> bool:
    """Whether joins has had all meters of these rules of ingestion since they came: no later telling undoes that."""
    ends = [*(after.first for after in pinned.history[1:]), effective.first + 1]
    since = [of_joins.rules for of_joins, end in zip(pinned.history, ends, strict=True) if end > effective.first]
    summed = [set(columns_of(restored(rules.get("meters")))) for rules in since]
    return effective.rules.get("max_per_event", {}).keys() <= pinned.sums.keys() and any(
        columns.issuperset(effective.rules.get("summed", ())) for columns in summed
    )


def _has_conditions(effective: EffectiveRules, after: Sequence[EffectiveRules], pinned: Pinned) -> bool:
    """Whether joins had the columns that these rules of ingestion require, or has recorded its own rules since.

    Or never will: others came `after`. No later telling undoes any of that.
    """
    conditions = _conditions(effective.rules)
    if any(_conditions(later.rules) != conditions for later in after):
        return True
    meters = rules_at(pinned.history, effective.first).get("meters", {})
    had = (conditions_stored(meters), once_stored(meters), of_period_stored(meters))
    return had == conditions or any(of_joins.first > effective.first for of_joins in pinned.history)


def _conditions(rules: Rules) -> tuple[Any, Any, Any]:
    """The conditions of meters in rules of ingestion."""
    return rules.get("where", {}), rules.get("once_per", {}), rules.get("of_period", {})


def mark_late_contract(rows: pl.DataFrame, again: pl.Series | None = None, *, late: bool) -> pl.DataFrame:
    """Rows with IS_CONTRACTED and IS_SENT_AGAIN; `again`: the lsns of `sent_again`."""
    is_again = pl.lit(value=False) if again is None else pl.col("lsn").is_in(again.implode())
    return rows.with_columns(pl.lit(late).alias(IS_CONTRACTED), is_again.alias(IS_SENT_AGAIN))


def _request_of(contract: Contract) -> tuple[Any, ...]:
    """What of a contract decides which request, or requests, an event is of."""
    paths = [field.path for field in contract.fields if field.column == REQUEST_ID]
    return contract.unnest, contract.family is Family.QUANTITY, *paths


def _as_records(rows: pl.DataFrame) -> pa.Table:
    """As Kafka gave them, when they were validated first."""
    given = rows.select(
        *("key", "value", "topic", "partition", "offset"),
        pl.col("received_at").alias("timestamp"),
        pl.lit(LOG_APPEND_TIME, pl.Int32).alias("timestampType"),
        *[pl.lit(None, pl.Binary).alias(column) for column in MARKS],
    )
    return given.to_arrow()
