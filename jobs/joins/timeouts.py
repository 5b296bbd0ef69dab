"""How long a row waits for its partner: a request the timeout of its model, a completion the longest timeout.

Each row waits as configured when it came (by lsn), so a changed timeout does not change earlier decisions. The same
applies to whether a better report may replace it.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from jobs.runtime.effective_rules import History
from metering.joining import FINAL
from metering.ranking import OF_COMPLETED, OF_PROVIDER, OF_SOURCE, OF_STATUS
from metering.vocabulary import Family

SECOND_US = 1_000_000


@dataclass(frozen=True)
class Configured:
    """The timeouts of rows from lsn `first` on, in microseconds."""

    first: int
    default_us: int
    by_model_us: dict[str, int]
    ranks: bool = False
    """Whether a better report may take the place of a lesser one."""

    @property
    def longest_us(self) -> int:
        """What a completion waits: it does not say which model it is of."""
        return max(self.default_us, *self.by_model_us.values(), 0)

    def of_model(self, model: pl.Expr) -> pl.Expr:
        """What a request waits."""
        if not self.by_model_us:
            return pl.lit(self.default_us, pl.Int64)
        return model.replace_strict(self.by_model_us, default=self.default_us, return_dtype=pl.Int64)


class Timeouts:
    """The present and past timeouts, as expressions over rows of the journal."""

    def __init__(self, history: History) -> None:
        """`history` of joins' deciding fields; at least one."""
        self.configured = tuple(
            Configured(
                effective.first,
                effective.rules["completion_timeout_seconds"] * SECOND_US,
                {model: seconds * SECOND_US for model, seconds in effective.rules["completion_timeouts"].items()},
                bool(effective.rules.get("best_report_bills")),
            )
            for effective in history
        )

    def of_row(self) -> list[pl.Expr]:
        """`timeout_us` and `merit` of a row (lsn, family, model, status, usage_source)."""
        completion = pl.col("family") == Family.COMPLETION
        own = pl.when(completion).then(self._of_completion("lsn")).otherwise(self._of_request("lsn"))
        final, ranked = pl.lit(FINAL, pl.Int8), _merit()
        merit = self._since("lsn", [ranked if configured.ranks else final for configured in self.configured])
        return [own.alias("timeout_us"), merit.alias("merit")]

    def of_pair(self) -> pl.Expr:
        """`timeout_us` of a matched pair (request_lsn, completion_lsn, model): the two met within it."""
        request, completion = self._of_request("request_lsn"), self._of_completion("completion_lsn")
        is_first = pl.col("request_lsn") <= pl.col("completion_lsn")
        return pl.when(is_first).then(request).otherwise(pl.min_horizontal(request, completion)).alias("timeout_us")

    def _of_request(self, lsn: str) -> pl.Expr:
        return self._since(lsn, [configured.of_model(pl.col("model")) for configured in self.configured])

    def _of_completion(self, lsn: str) -> pl.Expr:
        return self._since(lsn, [pl.lit(configured.longest_us, pl.Int64) for configured in self.configured])

    def _since(self, lsn: str, values: list[pl.Expr]) -> pl.Expr:
        value = values[0]
        for configured, later in zip(self.configured[1:], values[1:], strict=True):
            value = pl.when(pl.col(lsn) >= configured.first).then(later).otherwise(value)
        return value


def _merit() -> pl.Expr:
    """`ranking.merit` of a row; a quantity is no report of a request, so nothing beats it."""
    status = pl.col("status").replace_strict(OF_STATUS, default=OF_COMPLETED, return_dtype=pl.Int8)
    source = pl.col("usage_source").replace_strict(OF_SOURCE, default=OF_PROVIDER, return_dtype=pl.Int8)
    is_quantity = (pl.col("family") == Family.QUANTITY.value).fill_null(value=False)
    return pl.when(is_quantity).then(pl.lit(FINAL, pl.Int8)).otherwise(status + source)
