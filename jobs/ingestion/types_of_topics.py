"""Events of a type that their topic does not take are dead letters; heartbeats come in every topic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from metering.vocabulary import Family, Reason


def in_their_topics(events: pl.DataFrame, topics: pl.Series, types: Mapping[str, Sequence[str]]) -> pl.DataFrame:
    """Events (type, family, reason, violation, …), in which those in a wrong topic have the reason `wrong_topic`.

    `topics`: that of each. `types`: what the topics take that do not take all. A reason that there is stays.
    """
    takes = pl.any_horizontal(
        ~pl.lit(topics).is_in(list(types)),
        *[(pl.lit(topics) == topic) & pl.col("type").is_in(list(of_topic)) for topic, of_topic in types.items()],
    )
    is_heartbeat = pl.col("family").eq_missing(Family.HEARTBEAT.value)
    is_wrong = pl.col("reason").is_null() & pl.col("type").is_not_null() & ~takes & ~is_heartbeat
    if not events.select(is_wrong.any()).item():
        return events
    text = "Weir: the topic {} takes no events of this type, by `types` in `events` of jobs.ingestion"
    sentence = pl.format(text, pl.lit(topics))
    return events.with_columns(
        reason=pl.when(is_wrong).then(pl.lit(Reason.WRONG_TOPIC.value)).otherwise("reason"),
        violation=pl.when(is_wrong).then(sentence).otherwise("violation"),
    )
