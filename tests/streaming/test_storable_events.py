"""Property: whatever the validator accepts can be stored everywhere: in the journal, in `sources`, and priced in usage.

The journal and usage are real Delta tables, the database is a real one, and the prices are the highest there are.
"""

from __future__ import annotations

import json
from datetime import timedelta
from decimal import Decimal, localcontext
from pathlib import Path
from typing import Any

import polars as pl
import psycopg
from deltalake import DeltaTable
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from jobs.ingestion import conventions
from jobs.ingestion.journal_rows import journal_rows
from jobs.ingestion.repeats import entries
from jobs.ingestion.sources import fold_sources, seen_sources
from jobs.joins.config import JoinsConfig
from jobs.joins.pipeline import JOB
from jobs.joins.sink import UsageSink
from jobs.runtime.clock import MachineClock
from jobs.runtime.delta.table import FRONTIER, LSN, DeltaWriter, microseconds_of
from jobs.runtime.job import Context
from jobs.runtime.kafka.denied_topics import Denials
from jobs.runtime.postgres.ownership import Ownership
from jobs.streams import CatalogTopic, Table
from metering.meters import Meter
from metering.vocabulary import Disposition, EventType, Outcome
from tests.corpus import RECEIVED_AT
from tests.generated import generated
from tests.metered import flat
from tests.pipelines.ingestion import validated
from tests.streaming.journals import Journal, change, environment

DOCUMENTS = 400
HIGHEST_PRICE = "99999999.999999999999"
CATALOG = [
    change(CatalogTopic.ACCOUNTS, 0, account="a", name="A", plan="p", currency="EUR", timezone="UTC"),
    *[
        change(
            CatalogTopic.PRICES,
            0,
            plan="p",
            model="m",
            meter=meter.value,
            currency="EUR",
            unit_price=HIGHEST_PRICE,
            effective_from="2025-01-01T00:00:00Z",
        )
        for meter in Meter
    ],
]

edges = [0, 1, *(10**power + step for power in (9, 10, 11, 12, 17, 18, 19) for step in (-1, 0, 1))]
powers_of_two = [2**power + step for power in (31, 53, 63, 64) for step in (-1, 0, 1)]
numbers = st.sampled_from([*edges, *powers_of_two]) | st.integers(-5, 10**13)
values = st.one_of(
    st.none(),
    numbers,
    numbers.map(str),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6),
    st.sampled_from(["x" * 512, "ß" * 256, "\U0010ffff", "\uffff", "{", "[1,2)", "\\", '"']),
    st.integers(1, 900).map(lambda levels: json.loads('{"a":' * levels + "1" + "}" * levels)),
)
instants = st.sampled_from(["2026-07-01T11:59:59.123456789Z", "2026-05-27T12:00:00Z", "2026-07-01T12:04:59+00:00"])


@st.composite
def events(draw: st.DrawFn) -> bytes:
    """Usage events of account `a` with two odd members, in the envelope or in `data`."""
    data: dict[str, Any] = {"request_id": draw(st.uuids()).hex, "model": "m", "status": "completed"}
    event = {
        "specversion": "1.0",
        "type": EventType.USAGE.value,
        "source": draw(st.sampled_from(["gateway", "gateway/2"])),
        "id": data["request_id"],
        "subject": "a",
        "time": draw(instants),
    }
    data |= {name: draw(st.none() | st.integers(0, 10**10)) for name in ("input_tokens", "output_tokens")}
    odd = ["sequence", "sourceepoch", "senttime", "source", "input_tokens", "cached_tokens", "latency_ms", "user_id"]
    for name in draw(st.lists(st.sampled_from(odd), max_size=2)):
        (event if name in {"sequence", "sourceepoch", "senttime", "source"} else data)[name] = draw(values)
    return json.dumps({**event, "data": data}).encode()


def test_what_is_accepted_can_be_stored_everywhere(spark: SparkSession, database: str, tmp_path: Path) -> None:
    found = validated(generated(events(), DOCUMENTS))
    accepted = found.filter(pl.col("reason").is_null())
    assert len(found) * 0.3 < len(accepted) < len(found)
    journal = Journal(tmp_path)
    journal.commit(CATALOG)
    first = journal.next_lsn
    rows = accepted.with_row_index("lsn", first).with_columns(
        pl.col("lsn").cast(pl.Int64), disposition=pl.lit(Disposition.ACCEPTED.value)
    )
    entries(rows)

    over = RECEIVED_AT + timedelta(days=1)
    writer = DeltaWriter(journal.tables, Table.JOURNAL, "ingestion", 2, declared=[conventions.FIELD])
    writer.commit(
        journal_rows(rows, writer.schema, over, over), {LSN: first + len(rows), FRONTIER: microseconds_of(over)}
    )
    with psycopg.connect(database) as connection, connection.cursor() as cursor:
        fold_sources(cursor, seen_sources(rows))
        heard = cursor.execute("SELECT count(*) FROM sources").fetchone()
    where = environment(database, tmp_path)
    sink = UsageSink(
        JOB, Context(JoinsConfig(), where, spark, Ownership.take(JOB.name, database, {}), MachineClock(), Denials())
    )
    sink.process(journal.read(spark, JOB.columns(JOB.config()), end=first + len(rows)))

    assert heard == (rows.select("source", pl.col("source_epoch").fill_null("")).n_unique(),)
    usage = pl.DataFrame(DeltaTable(f"{journal.tables}/{Table.USAGE}").to_pyarrow_table())
    assert set(usage["request_id"]) == set(rows["request_id"])
    with localcontext(prec=38):
        for nested in usage.filter(pl.col("outcome") == Outcome.MATCHED).iter_rows(named=True):
            row = flat(nested)
            amounts = {meter: row[f"{meter}_amount"] for meter in Meter if row[meter.value] is not None}
            assert amounts == {meter: row[meter.value] * Decimal(HIGHEST_PRICE) for meter in amounts}
