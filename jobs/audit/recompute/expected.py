"""Rows of the journal → the usage that they must have made, by the functions that the stream decides and prices with.

An outcome is a pure function of the journal, F and the effective rules, not of the stream's batches, so all rows
of a key are decided at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property

import polars as pl
import pyarrow as pa

from jobs.joins.billing_days import BillingDays
from jobs.joins.catalog_versions import Versions, account_versions, price_versions
from jobs.joins.members import members
from jobs.joins.memory import Schema, carried, condition_of
from jobs.joins.pricing import price
from jobs.joins.quantities import BILLED
from jobs.joins.resolve import resolve
from jobs.joins.timeouts import SECOND_US, Timeouts
from jobs.runtime.effective_rules import History, Rules, rules_at
from jobs.settings.stored_meters import restored
from jobs.streams import ACCOUNTS, PRICES
from jobs.usage_members import MEMBERS
from metering.meters import REPORTED_COLUMNS, Declaration, columns_of, conditions_of
from metering.once_per import OncePer
from metering.price_attributes import PriceAttribute, columns_of_accounts, columns_of_bands, texts_of_events
from metering.price_attributes import restored as attributes_restored
from metering.ranking import reach_seconds

EXPECTED = (
    *("account", "request_id", "user_id", "model", "status", "outcome", "request_lsn", "completion_lsn"),
    *("event_time", "received_at", "first_received_at", "plan", "currency", "day", "dimensions", "meters", MEMBERS),
)
"""The columns of an outcome in a row of usage."""
PARTS = ("request_lsn", "completion_lsn")
OUTCOME = ("account", "request_id", *PARTS)
"""The key of an outcome."""
CONTENTS = "contents"
"""Beside EXPECTED, where a meter counts each content once: of each such meter what the content of an outcome is."""
CONTENTS_KIND = pl.List(
    pl.Struct({**dict.fromkeys(("meter", "column"), pl.String()), "within_us": pl.Int64(), "content": pl.String()})
)
REJOIN_WITHIN = timedelta(days=35)
IS_CONTRACTED = "is_contracted"
"""Whether the contract of a row's type came after the row (`late_contracts.py`)."""
IS_SENT_AGAIN = "is_sent_again"
"""Whether such a row's event came again, and is billed as other requests (`late_contracts.sent_again`)."""
MAX_ROWS = 250_000
"""How many rows are corrected at once. They pass through the driver, 625 bytes each; Spark gives it at most a GiB."""
_NEXT = 2**63 - 1
"""The lsn of rows that are not in usage yet."""


@dataclass(frozen=True)
class Pinned:
    """The basis of a recomputation: everything as joins had it when it wrote the examined usage."""

    position: int
    """The journal below this lsn."""
    frontier: datetime | None
    history: History
    """joins' rules, at least one."""
    metered: Sequence[tuple[int, Rules]]
    """From which lsn of usage on its rows have which meters and dimensions: of outcomes that nobody completed, only
    their rows tell who decided them."""
    accounts: pa.Table
    prices: pa.Table
    """Every version (streams.ACCOUNTS, PRICES)."""
    known_from: int = 1
    """The rules of rows of the journal before that lsn are unknown."""
    since: datetime | None = None
    """Rows received before this are not all read; None: all are."""
    priced_since: datetime | None = None
    """What was received from here on, and before `since`, is priced again, and nothing else of it changes; None:
    nothing is."""
    rejoin_within: timedelta = REJOIN_WITHIN
    """So far apart an abandoned request and an orphaned completion may be first received and be one pair."""
    until: datetime | None = None
    """Keys of which all that occurred, occurred from here on, are left out; None: none are."""
    max_rows: int = MAX_ROWS
    """About how many rows are corrected at once, or those of a key in each part of the keys."""
    decides_contents: bool = True
    """Whether it is decided which outcome of a content counts: not where only a period is read."""

    def ranks(self, lsn: int) -> bool:
        """Whether the best report of a request bills that began with this row."""
        return bool(rules_at(self.history, lsn).get("best_report_bills"))

    def reach_us(self, lsn: int) -> int:
        """How much later than this row others of its request may be first received, in microseconds."""
        return reach_seconds(rules_at(self.history, lsn), self.rejoin_within.total_seconds()) * SECOND_US

    @cached_property
    def accounts_known(self) -> Versions:
        """The accounts, as `price` wants them."""
        named = (*self._dimensions, *columns_of_accounts(self._attributes))
        return account_versions(self.accounts.cast(ACCOUNTS), named)

    @cached_property
    def prices_known(self) -> Versions:
        """The prices, as `price` wants them."""
        return price_versions(self.prices.cast(PRICES))

    @cached_property
    def days(self) -> BillingDays:
        """The days of all accounts."""
        return BillingDays(self.accounts)

    @property
    def schema(self) -> Schema:
        """What is needed of a row of the journal (`memory.carried`): the columns of all meters that ever held."""
        meters = [meter for effective in self.history for meter in restored(effective.rules.get("meters"))]
        summed = dict.fromkeys([*REPORTED_COLUMNS, *columns_of(meters)])
        reported = (*summed, *columns_of_bands(self._attributes))
        texts = (*conditions_of(meters), *texts_of_events(self._attributes), *self.contents)
        return carried(reported, self._dimensions, tuple(dict.fromkeys(texts)))

    @property
    def _dimensions(self) -> Sequence[str]:
        """All that were ever configured."""
        return list(dict.fromkeys(name for rules in self._rules for name in rules.get("dimensions", ())))

    @property
    def _attributes(self) -> Sequence[PriceAttribute]:
        """All that conditions of prices could ever name."""
        return [attribute for rules in self._rules for attribute in attributes_restored(rules.get("price_attributes"))]

    @property
    def _rules(self) -> Sequence[Rules]:
        """All that ever held."""
        return [effective.rules for effective in self.history] + [rules for _, rules in self.metered]

    @cached_property
    def once_per(self) -> tuple[OncePer, ...]:
        """How any meter ever counted each content once."""
        meters = [meter for rules in self._rules for meter in restored(rules.get("meters"))]
        return tuple(dict.fromkeys(meter.once_per for meter in meters if meter.once_per is not None))

    @cached_property
    def has_periods(self) -> bool:
        """Whether any meter ever billed a period by its members."""
        meters = [meter for rules in self._rules for meter in restored(rules.get("meters"))]
        return any(meter.of_period is not None for meter in meters)

    @property
    def contents(self) -> tuple[str, ...]:
        """The columns of which any meter ever counted each content once."""
        return tuple(dict.fromkeys(rule.column for rule in self.once_per))

    @property
    def longest_content_seconds(self) -> int:
        """The longest window in which any meter ever counted each content once; 0 without any."""
        return max((rule.within_seconds for rule in self.once_per), default=0)

    @property
    def sums(self) -> dict[str, str]:
        """The column of numbers that each meter reads, of all meters ever declared."""
        meters = [meter for rules in self._rules for meter in restored(rules.get("meters"))]
        return {meter.name: meter.reported for meter in meters if meter.reported is not None}


def recompute(rows: pl.DataFrame, found: pl.DataFrame, pinned: Pinned) -> pl.DataFrame:
    """Requests and completions (Pinned.schema without what joins adds), all of their keys → EXPECTED, a row per
    outcome.

    `found` (OUTCOME, usage_lsn) says which row of usage the stream gave an outcome: of one that waited in vain its
    meters follow.
    """
    return expected_usage(decided(rows, pinned), found, pinned)


def with_timeouts(rows: pl.DataFrame, pinned: Pinned) -> pl.DataFrame:
    """The rows as joins has them before anything is decided (Pinned.schema)."""
    waiting = rows.with_columns(Timeouts(pinned.history).of_row())
    return waiting.with_columns(pl.lit(None, pl.String).alias("decided_side"), remembered=False).select(*pinned.schema)


def decided(rows: pl.DataFrame, pinned: Pinned) -> pl.DataFrame:
    """Rows of whole keys → their outcomes (`resolve`)."""
    return resolve(with_timeouts(rows, pinned), pinned.frontier)


def expected_usage(
    outcomes: pl.DataFrame, found: pl.DataFrame, pinned: Pinned, *, seen_from: int | None = None
) -> pl.DataFrame:
    """Outcomes (`resolve`) → EXPECTED: with the prices known when each was decided, or those before lsn `seen_from`.

    Where any meter ever counted each content once, CONTENTS come with them.

    Of those that are IS_CONTRACTED, which no driver has decided, the row of usage tells by which meters they count; of
    those that have none yet these are the newest.
    """
    outcomes = outcomes.join(found, on=OUTCOME, how="left", nulls_equal=True, maintain_order="left")
    accounts, prices, days = pinned.accounts_known, pinned.prices_known, pinned.days
    columns = (*EXPECTED, CONTENTS) if pinned.contents else EXPECTED
    made = []
    for part, rules in _by_rules(outcomes, pinned):
        meters, named = restored(rules.get("meters")), rules.get("dimensions", ())
        attributes = attributes_restored(rules.get("price_attributes"))
        priced = pl.DataFrame(
            price(part, meters, accounts, prices, named=named, attributes=attributes, seen_from=seen_from)
        )
        of_periods = members(part, meters, days, accounts, prices, attributes=attributes, seen_from=seen_from)
        dated = priced.with_columns(days.days(part).alias("day"), of_periods)
        made.append(dated.with_columns(*_contents(meters, pinned)).select(columns))
    return pl.concat(made, how="vertical_relaxed")


def _contents(meters: Sequence[Declaration], pinned: Pinned) -> Iterator[pl.Expr]:
    """CONTENTS of priced outcomes that these meters count; null where none of them counts a content once."""
    is_billed = pl.col("outcome").is_in(list(BILLED))
    contents = [
        pl.struct(
            meter=pl.lit(meter.name),
            column=pl.lit(rule.column),
            within_us=pl.lit(rule.within_seconds * SECOND_US, pl.Int64),
            content=pl.when(is_billed).then(pl.col(condition_of(rule.column))),
        )
        for meter in meters
        if (rule := meter.once_per) is not None
    ]
    if pinned.contents:
        yield (pl.concat_list(contents) if contents else pl.lit(None)).cast(CONTENTS_KIND).alias(CONTENTS)


def _by_rules(outcomes: pl.DataFrame, pinned: Pinned) -> Iterator[tuple[pl.DataFrame, Rules]]:
    """The outcomes that have the same meters and dimensions, with what these are; at least one part."""
    decided = pl.max_horizontal(PARTS)
    if IS_CONTRACTED not in outcomes.columns:
        outcomes = outcomes.with_columns(pl.lit(value=False).alias(IS_CONTRACTED))
    is_alone = pl.any_horizontal(pl.col(name).is_null() for name in PARTS)
    # Who waited was decided by the driver of then.
    has_waited = (is_alone | pl.col("is_lesser")) & pl.col("usage_lsn").is_not_null()
    tells = pl.col(IS_CONTRACTED) | has_waited
    by_usage = _place(pl.col("usage_lsn").fill_null(_NEXT), [first for first, _ in pinned.metered])
    by_journal = _place(decided, [effective.first for effective in pinned.history])
    every = [effective.rules for effective in pinned.history] + [rules for _, rules in pinned.metered]
    place = pl.when(tells & pl.lit(len(pinned.metered) > 0)).then(by_usage + len(pinned.history)).otherwise(by_journal)
    placed = outcomes.with_columns(place.alias("place"))
    for number, rules in enumerate(every):
        part = placed.filter(pl.col("place") == number).drop("place", "usage_lsn", IS_CONTRACTED)
        if number == 0 or len(part):
            yield part, rules


def _place(lsn: pl.Expr, firsts: Sequence[int]) -> pl.Expr:
    """The number of the last of `firsts` (in order) at or below it; before all of them the first."""
    return pl.sum_horizontal(pl.lit(0), *[(lsn >= first).cast(pl.Int32) for first in firsts[1:]])
