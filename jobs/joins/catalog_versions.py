"""Every version of accounts and prices → the one that applies, for many rows at once.

A version applies from `effective_us` to outcomes decided after `lsn` and not after `superseded_lsn`: for a price, that
is the lsn of the next version of the same key and `effective_from`. A deletion that ended a price holds the price as it
was until then. tests/specifications/pricing.py has the rule row by row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from jobs.account_versions import attribute_of, begins_us
from jobs.joins.memory import text_of
from jobs.settings.dimensions import of_accounts
from jobs.streams import UNIT_PRICE
from metering.price_models import ANY, BEGINS, GROUP, PricedModels
from metering.pricing import ASSUMED_VERSIONS_FROM

CONTRACT = ("plan", "currency")
"""What an account is priced by."""
PRICE_KEY = ("plan", "model", "meter", "currency")
BEGINS_US = "begins_us"
"""Of the price that began last: when. It may have ended."""
AT = ("decided_lsn", "event_us")
"""The lsn from which a version is known, and the time of the event."""
_HAS_ENDED = (pl.col("ends_us") <= pl.col("event_us")).fill_null(value=False)


@dataclass(frozen=True)
class Versions:
    """All versions of one kind; of several that apply at once the last by `newest` wins."""

    key: tuple[str, ...]
    values: tuple[str, ...]
    newest: tuple[str, ...]
    every: pl.DataFrame
    """(key, lsn, superseded_lsn, effective_us, ends_us, concerns_us, deleted, withdrawn, version_lsn, values).

    `version_lsn` is the version whose values these are, and holds before `ends_us` (null: for ever); what occurred
    before `concerns_us` it changes nothing of."""
    withdraws: bool
    """Whether a deletion withdraws the version that it deletes; otherwise it applies, with no value."""
    max_compared: int = 2_000_000
    """Pairs of a row and a version that are looked at together."""

    def as_of(self, rows: pl.DataFrame, seen_from: int | None = None) -> pl.DataFrame:
        """Rows (key, decided_lsn, event_us, …) → the same with `version_lsn` and `values`; null where none applies.

        `seen_from`: for a reader that looks back and also knows the versions before that lsn.
        """
        if seen_from is not None:
            return self._seen_later(rows, seen_from)
        joined = rows.with_row_index("_row").join(self._settled, on=list(self.key), how="left", maintain_order="left")
        knows_all = (pl.col("decided_lsn") > pl.col("settled_lsn")).fill_null(value=True)
        between = joined.filter(~knows_all)
        found = self._by_time(joined.filter(knows_all))
        if len(between):
            found = pl.concat([found, self._by_search(between).select(found.columns)]).sort("_row")
        return found.drop("_row", "settled_lsn")

    def have(self, keys: pl.DataFrame) -> pl.Series:
        """Of which of these keys (`key`) there is any version, whether it applies or not."""
        there_is = self._settled.select(*self.key, there_is=True)
        found = keys.join(there_is, on=list(self.key), how="left", maintain_order="left")
        return found["there_is"].fill_null(value=False)

    @cached_property
    def priced_models(self) -> PricedModels:
        """Of prices: those for more than one model, or for only some of its events."""
        return priced_models(self.every["model"].to_arrow())

    @cached_property
    def _holding(self) -> pl.DataFrame:
        return self.every.filter(~pl.col("deleted")) if self.withdraws else self.every

    @cached_property
    def _settled(self) -> pl.DataFrame:
        """Who decides later than `settled_lsn` knows all versions of the key."""
        return self.every.group_by(self.key).agg(pl.max("lsn").alias("settled_lsn"))

    @cached_property
    def _timeline(self) -> pl.DataFrame:
        """For who knows all versions: what holds from `effective_us` to `ends_us`, at most until the next begins at
        `followed_us` (null: no end), by the first.
        """
        live = self._holding.filter(pl.col("superseded_lsn").is_null()).sort("effective_us", "lsn")
        # Of accounts the newest that has begun holds: a later beginning of an older one changes nothing.
        holds = pl.col("lsn").cum_max().over(self.key) if self.newest == ("lsn",) else pl.col("lsn")
        begins = live.select(*self.key, "effective_us", lsn=holds)
        values = live.select(*self.key, "lsn", "ends_us", "version_lsn", *self.values)
        return (
            begins.unique([*self.key, "effective_us"], keep="last", maintain_order=True)
            .join(values, on=[*self.key, "lsn"], how="left", maintain_order="left")
            .drop("lsn")
            .sort("effective_us")
            .with_columns(followed_us=pl.col("effective_us").shift(-1).over(self.key))
        )

    @property
    def _unless_ended(self) -> list[pl.Expr]:
        """The values of versions that have not ended; of ended ones only their beginning."""
        names = [name for name in ("version_lsn", *self.values) if name != BEGINS_US]
        return [pl.when(~_HAS_ENDED).then(name).alias(name) for name in names]

    def _by_time(self, rows: pl.DataFrame) -> pl.DataFrame:
        # A batch is of some minutes, and a key may have years of versions.
        first_us, last_us = (pl.lit(at, pl.Int64) for at in (rows["event_us"].min(), rows["event_us"].max()))
        has_begun, goes_on = pl.col("effective_us") <= last_us, pl.col("followed_us") > first_us
        begun = rows.sort("event_us").join_asof(
            self._timeline.filter(has_begun & goes_on.fill_null(value=True)).drop("followed_us"),
            left_on="event_us",
            right_on="effective_us",
            by=list(self.key),
            strategy="backward",
            check_sortedness=False,
        )
        return begun.with_columns(self._unless_ended).drop("effective_us", "ends_us", strict=False).sort("_row")

    def _by_search(self, rows: pl.DataFrame) -> pl.DataFrame:
        """For who knows only some: all versions of each row's key are looked at."""
        found = [self._searched(part) for part in self._portions(rows)]
        return rows.join(pl.concat(found), on="_row", how="left", maintain_order="left")

    def _portions(self, rows: pl.DataFrame) -> Iterator[pl.DataFrame]:
        counts = self._holding.group_by(self.key).len("versions")
        compared = rows.join(counts, on=list(self.key), how="left", maintain_order="left")["versions"].fill_null(0)
        yield from rows.with_columns(_portion=compared.cum_sum() // self.max_compared).partition_by(
            "_portion", include_key=False
        )

    def _searched(self, rows: pl.DataFrame) -> pl.DataFrame:
        is_known = (pl.col("lsn") < pl.col("decided_lsn")) & (
            pl.col("superseded_lsn").is_null() | (pl.col("superseded_lsn") >= pl.col("decided_lsn"))
        )
        has_begun = pl.col("effective_us") <= pl.col("event_us")
        return (
            rows.select("_row", *self.key, *AT)
            .join(self._holding, on=list(self.key), how="inner")
            .filter(is_known & has_begun)
            .sort(self.newest)
            .unique("_row", keep="last", maintain_order=True)
            .with_columns(self._unless_ended)
            .select("_row", "version_lsn", *self.values)
        )

    def _seen_later(self, rows: pl.DataFrame, seen_from: int) -> pl.DataFrame:
        """A price that is withdrawn keeps applying to what was decided before.

        A price that came after the decision and was withdrawn again never applied. A price that ended has ended for
        all.
        """
        numbered = rows.with_row_index("_row")
        parts = self._portions(numbered) if len(numbered) else [numbered]
        found = [self._searched_later(part, seen_from) for part in parts]
        return numbered.join(pl.concat(found), on="_row", how="left", maintain_order="left").drop("_row")

    def _searched_later(self, rows: pl.DataFrame, seen_from: int) -> pl.DataFrame:
        is_later = pl.col("lsn") >= pl.col("decided_lsn")
        known = (
            rows.select("_row", *self.key, *AT)
            .join(self.every, on=list(self.key), how="inner")
            .filter((~is_later | (pl.col("lsn") < seen_from)) & (pl.col("effective_us") <= pl.col("event_us")))
            .sort(*self.newest, "lsn")
        )
        if self.withdraws:
            begun = ["_row", "effective_us"]
            parts = known.with_columns(is_later.alias("_later"))
            last = parts.unique([*begun, "_later"], keep="last", maintain_order=True)
            standing = last.filter(~(pl.col("_later") & pl.col("withdrawn")))
            known = standing.unique(begun, keep="last", maintain_order=True).filter(~pl.col("deleted"))
        newest = known.unique("_row", keep="last", maintain_order=True)
        return newest.with_columns(self._unless_ended).select("_row", "version_lsn", *self.values)


def priced_models(models: pa.Array | pa.ChunkedArray) -> PricedModels:
    """Those among the models of prices: nearly all are plain."""
    distinct = pc.unique(models)
    is_special = pc.or_(pc.ends_with(distinct, ANY), pc.match_substring(distinct, BEGINS))
    is_special = pc.or_(is_special, pc.starts_with(distinct, GROUP))
    return PricedModels.among(distinct.filter(is_special).to_pylist())


def by_reported_model(prices: pl.DataFrame, reported: pl.Series, known: PricedModels | None = None) -> pl.DataFrame:
    """Rows of prices (model, …) → the same per reported model that a price may be for, regardless of what else an
    event says; prices for none of them are left out where any is for more than one model. `known`: those of these rows.
    """
    known = priced_models(prices["model"].to_arrow()) if known is None else known
    if not known:
        return prices
    found = [(model, text) for model in reported.unique().drop_nulls() for text in known.of_model(model)]
    models = pl.DataFrame(found, schema={"reported": pl.String(), "model": pl.String()}, orient="row")
    named = prices.join(models, on="model", how="inner").drop("model").rename({"reported": "model"})
    return named.select(prices.columns)


def account_versions(accounts: pa.Table, dimensions: Iterable[str] = ()) -> Versions:
    """All versions (streams.ACCOUNTS) → an account's plan and currency, and its `dimensions` (`text_of`).

    An account's very first version applies from the beginning of time. A deletion is a version with none of these. The
    newest that has begun applies, so none needs an end.
    """
    never = pl.lit(None, pl.Int64)
    names = of_accounts(dict.fromkeys(dimensions))
    columns = [attribute_of(name).alias(text_of(name)) for name in names]
    return _versions(
        pl.DataFrame(accounts)
        .sort("account", "lsn")
        .with_columns(
            effective_us=begins_us(), superseded_lsn=never, ends_us=never, version_lsn="lsn", withdrawn="deleted"
        )
        .with_columns(*columns, concerns_us="effective_us"),
        key=("account",),
        values=(*CONTRACT, *map(text_of, names)),
        newest=("lsn",),
        withdraws=False,
    )


def price_versions(prices: pa.Table) -> Versions:
    """All versions (streams.PRICES) → what one unit costs; null of a version with `terms`, which its own ladder prices.

    A deletion ends the price of its `effective_from`: it is that price once more, with its end. Where there was none,
    or it had not begun, nothing is left; nor of one that is withdrawn (without `ends_at`). A price that is assumed has
    an lsn below 1, and a version of its own (`ASSUMED_VERSIONS_FROM`).
    """
    lsn = pl.col("lsn")
    of_instant = [*PRICE_KEY, "effective_us"]
    was = pl.when(~pl.col("deleted"))
    has_none = pl.col("version_lsn").is_null() | (pl.col("ends_us") <= pl.col("effective_us"))
    # A deletion is of the last price, also where that has no price of one unit: no price is below 0.
    no_unit = pl.lit(-1, pl.Int32).cast(pl.Decimal(UNIT_PRICE.precision, UNIT_PRICE.scale))
    return _versions(
        pl.DataFrame(prices)
        .with_columns(effective_us=pl.col("effective_from").dt.epoch("us"), ends_us=pl.col("ends_at").dt.epoch("us"))
        .sort(*of_instant, "lsn")
        .with_columns(
            superseded_lsn=pl.col("lsn").shift(-1).over(of_instant),
            concerns_us=pl.max_horizontal("effective_us", "ends_us"),
            withdrawn=pl.col("deleted") & pl.col("ends_us").is_null(),
            version_lsn=was.then(pl.when(lsn > 0).then(lsn).otherwise(ASSUMED_VERSIONS_FROM - lsn))
            .forward_fill()
            .over(of_instant),
            unit_price=was.then(pl.coalesce("unit_price", no_unit)).forward_fill().over(of_instant),
            begins_us="effective_us",
        )
        .with_columns(unit_price=pl.when(pl.col("unit_price") >= 0).then("unit_price"))
        .with_columns(deleted=pl.col("withdrawn") | has_none.fill_null(value=False)),
        key=PRICE_KEY,
        values=("unit_price", BEGINS_US),
        newest=("effective_us", "lsn"),
        withdraws=True,
    )


def _versions(
    every: pl.DataFrame, *, key: tuple[str, ...], values: Sequence[str], newest: tuple[str, ...], withdraws: bool
) -> Versions:
    times = ("lsn", "superseded_lsn", "effective_us", "ends_us", "concerns_us")
    named = every.select(*key, *times, "deleted", "withdrawn", "version_lsn", *values)
    return Versions(key, tuple(values), newest, named, withdraws)
