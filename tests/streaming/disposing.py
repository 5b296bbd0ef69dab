"""A second opinion on dispositions: a whole topic validated again, each record by the rules that held at its lsn."""

from __future__ import annotations

import polars as pl

from jobs.ingestion.config import IngestionConfig
from jobs.ingestion.earlier_rules import looked_for
from jobs.ingestion.event_times import validated_by_reception
from jobs.ingestion.quarantine import quarantine
from jobs.ingestion.repeats import candidates, entries, repeats
from jobs.runtime.effective_rules import History, rules_at
from metering.vocabulary import Disposition

DISPOSED = ("lsn", "offset", "disposition", "reason", "first_lsn", "event_time")


def disposed(records: pl.DataFrame, journal: pl.DataFrame, history: History) -> pl.DataFrame:
    """`DISPOSED` of all records (`EventValidator.schema`) of a partition, one after the other; of the journal only
    their places.

    Places are lsn and received_at, by offset.
    """
    placed = records.join(journal.select("offset", "lsn", "received_at"), on="offset").sort("lsn")
    accepted: list[pl.DataFrame] = []
    told: list[pl.DataFrame] = []
    for row in placed.iter_slices(1):
        rules = rules_at(history, row["lsn"].item())
        # By which contracts they were validated, the records say themselves.
        validating = {name: rule for name, rule in rules.items() if name in IngestionConfig.DECIDING}
        config = IngestionConfig.model_validate(validating)
        validated = validated_by_reception(quarantine(row, {}, config.max_record_bytes), config)
        validated = validated.with_columns(replays_lsn=pl.lit(None, pl.Int64))
        first_lsn, disposition = None, Disposition.REJECTED
        if validated["reason"].item() is None:
            held = [one for one in history if one.first <= row["lsn"].item()]
            asking = candidates(validated.filter(pl.col("family").is_not_null()), *looked_for(config, held))
            found = repeats(asking, pl.concat([entries(validated).clear(), *accepted])).sort("first_lsn").head(1)
            disposition = Disposition.ACCEPTED
            if not found.is_empty():
                first_lsn = found["first_lsn"].item()
                disposition = Disposition.DUPLICATE if found["same"].item() else Disposition.CONFLICT
            elif not asking.is_empty():
                accepted.append(entries(validated))
        said = validated.with_columns(disposition=pl.lit(disposition.value), first_lsn=pl.lit(first_lsn, pl.Int64))
        told.append(said.select(DISPOSED))
    return pl.concat(told)
