"""The configuration of joins."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, ClassVar

from pydantic import Field

from jobs.joins.memory import Schema, carried
from jobs.runtime.batch_limits import BATCH_CELLS, outcomes_at_once
from jobs.runtime.config import JobConfig
from jobs.runtime.effective_rules import History
from jobs.settings.dimensions import of_accounts
from jobs.settings.names import Name
from jobs.settings.price_attributes import settled_attributes
from jobs.settings.stored_meters import conditions_stored, stored
from metering.limits import MAX_NAME_BYTES
from metering.meters import DEFAULT, DETAILS, Meter, columns_of, conditions_of
from metering.price_attributes import columns_of_accounts, columns_of_bands, restored, texts_of_events

Seconds = Annotated[int, Field(ge=1, le=86_400)]


class JoinsConfig(JobConfig):
    """`jobs.joins.config`."""

    DECIDING: ClassVar[tuple[str, ...]] = ("completion_timeout_seconds", "completion_timeouts")
    DECIDING_REPORTS: ClassVar[tuple[str, ...]] = ("best_report_bills", "rejoin_seconds")
    """Where the best report bills: also how far apart the reports of a request may be."""

    completion_timeout_seconds: int = Field(
        default=600,
        ge=1,
        le=86_400,
        description="A request waits this long for its completion, if its model has no timeout of its own; in seconds.",
    )
    completion_timeouts: dict[Name, Seconds] = Field(
        default_factory=dict,
        max_length=100,
        description="Seconds by model, for at most 100 models of at most "
        f"{MAX_NAME_BYTES} bytes. A completion waits for the longest of all timeouts.",
    )
    waiting_memory_mib: int = Field(
        default=512,
        ge=1,
        le=65_536,
        description="Most memory for requests and completions that a later row may still match; beyond it joins waits.",
    )

    driver_rows: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="Batches of at most so many rows of the journal are decided and priced in the driver, larger ones "
        "(up to max_records_per_batch) by tasks on executors; usage is the same, to its numbers. Without it 50,000 "
        "where there are executors; else the driver takes all, because tasks beside it need more of the same cores.",
    )
    rejoin_seconds: int = Field(
        default=3_024_000,
        ge=0,
        le=31_622_400,
        description="The audit makes one pair of an abandoned request and an orphaned completion of its id that were "
        "first received at most this long apart; in seconds, at most 366 days. Existing pairs stay pairs.",
    )

    best_report_bills: bool | None = Field(
        default=None,
        description="Whether of several reports of a request the best one bills, whichever came first: completed "
        "before cancelled before error, the provider's count before an estimated and a partial one. A lesser report "
        "then waits as long as its request, and the audit corrects what came later, within `rejoin_seconds` or the "
        "longest time-out. It holds for what comes after it is turned on. Turn it on when no earlier release will be "
        "started again: that would refuse the corrections. Left out: a new installation has it on, an upgraded one as "
        "before.",
    )

    def settled(self, history: History, *, is_new: bool, has_details: bool = True) -> JoinsConfig:
        """The configuration with its open settings filled: by the rules of usage so far, or by defaults if `is_new`.

        These are: whether the best report bills, which requests the default meter counts, whether parts of tokens are
        metered by default (in a new installation if the journal `has_details`), and whether bands of several columns
        count each unit once.
        """
        rules = history[-1].rules if history else {}
        meters_details = (is_new and has_details) or {part.name for part in DETAILS} <= set(rules.get("meters") or {})
        counts_some = is_new or Meter.REQUESTS in conditions_stored(rules.get("meters") or {})
        ranks = self.best_report_bills
        if ranks is None:
            ranks = is_new or bool(rules.get("best_report_bills"))
        meters = self.settled_meters(bills_failures=not counts_some, has_details=meters_details)
        attributes = settled_attributes(self.price_attributes, restored(rules.get("price_attributes")))
        update = {"best_report_bills": ranks, "meters": meters, "price_attributes": attributes}
        return self.model_copy(update=update)

    @property
    def rejoin_within(self) -> timedelta:
        """The same as a duration."""
        return timedelta(seconds=self.rejoin_seconds)

    @property
    def deciding(self) -> dict[str, Any]:
        """With what the meters count, what goes with an outcome, and which report of it bills."""
        names = self.DECIDING_REPORTS if self.best_report_bills else ()
        reports = {name: getattr(self, name) for name in names}
        attributes = (
            {"price_attributes": [attribute.stored for attribute in self.attributes]} if self.attributes else {}
        )
        counted = {"meters": stored(self.declared), "dimensions": list(self.dimensions)}
        return {**super().deciding, **counted, **attributes, **reports}

    @property
    def carried(self) -> Schema:
        """What joins remembers of a row that waits."""
        columns = (*conditions_of(self.declared), *texts_of_events(self.attributes))
        reported = (*columns_of(self.declared), *columns_of_bands(self.attributes))
        return carried(reported, self.dimensions, columns)

    @property
    def of_accounts(self) -> tuple[str, ...]:
        """Columns of the account that are dimensions, or that conditions of prices can name."""
        return (*of_accounts(self.dimensions), *columns_of_accounts(self.attributes))

    @property
    def timeouts_seconds(self) -> dict[str, int]:
        """Every timeout by the name of its field: no grace may be shorter, and no clock ahead by half of one."""
        by_model = {f"completion_timeouts.{model}": seconds for model, seconds in self.completion_timeouts.items()}
        return {"completion_timeout_seconds": self.completion_timeout_seconds, **by_model}

    @property
    def rows_at_once(self) -> int:
        """Fewer where each may have many meters."""
        return min(super().rows_at_once, outcomes_at_once(len(self.meters)))

    @property
    def max_batch_rows(self) -> int:
        """Where it is known how much they say. An empty column has its size, too."""
        meters = len(self.meters)
        return min(super().rows_at_once, outcomes_at_once(min(meters, len(DEFAULT))), BATCH_CELLS // meters)
