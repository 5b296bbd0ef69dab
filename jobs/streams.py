"""The names and shapes of everything that flows between the applications (docs/design.md, Contracts)."""

from __future__ import annotations

from enum import StrEnum

import pyarrow as pa

from metering.meters import QUANTITY_DECIMALS, REPORTED_COLUMNS, Meter

EVENTS_TOPIC = "events"
HEARTBEAT_SOURCE = "weir"
"""The source of ingestion's own heartbeats."""


class CatalogTopic(StrEnum):
    """Compacted change topics of the Postgres schema `catalog`, in Debezium's envelope."""

    ACCOUNTS = "catalog.accounts"
    PLANS = "catalog.plans"
    PRICES = "catalog.prices"
    DECISIONS = "catalog.decisions"


HEARTBEATS_TOPIC = "heartbeats.weir"
"""Of the connector that captures the catalog: with it moves on what it has done, also while nothing changes."""


class Table(StrEnum):
    """Delta tables, by their folder below the tables' root."""

    JOURNAL = "journal"
    USAGE = "usage"
    ACCOUNTS = "accounts"
    PRICES = "prices"


INSTANT = pa.timestamp("us", tz="UTC")
UNIT_PRICE = pa.decimal128(20, 12)
QUANTITY = pa.decimal128(17, QUANTITY_DECIMALS)
"""Of one row: below 10^11. What it makes with a unit price has just the 38 digits that there are."""
AMOUNT = pa.decimal128(38, 18)
EARLIER_AMOUNT = pa.decimal128(38, 12)
"""Of whole quantities, in the columns that earlier releases had per meter."""
METERED = pa.struct(
    [
        pa.field("meter", pa.string()),
        pa.field("quantity", QUANTITY),
        pa.field("price_version", pa.int64()),
        pa.field("unit_price", UNIT_PRICE),
        pa.field("amount", AMOUNT),
    ]
)
"""One meter of an outcome: its quantity (null: its completion should have reported it, and did not), the price's
version (the journal lsn of its change), the price of one unit, and quantity x unit price. Without a version it is
unpriced. A version without a unit price has tiers or packages: the amount is a function of the month's total."""

JOURNAL = pa.schema(
    [
        pa.field("lsn", pa.int64(), nullable=False),
        pa.field("log_date", pa.date32(), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("received_at", INSTANT, nullable=False),
        pa.field("first_received_at", INSTANT),
        pa.field("reception_mark", pa.string()),
        pa.field("replay_mark", pa.string()),
        pa.field("replays_lsn", pa.int64()),
        pa.field("logged_at", INSTANT, nullable=False),
        pa.field("frontier", INSTANT),
        pa.field("rules", pa.string()),
        pa.field("disposition", pa.string(), nullable=False),
        pa.field("reason", pa.string()),
        pa.field("violation", pa.string()),
        pa.field("first_lsn", pa.int64()),
        pa.field("identity", pa.binary()),
        pa.field("content_digest", pa.int64()),
        pa.field("source", pa.string()),
        pa.field("id", pa.string()),
        pa.field("type", pa.string()),
        pa.field("family", pa.string()),
        pa.field("account", pa.string()),
        pa.field("occurred_at", INSTANT),
        pa.field("sent_at", INSTANT),
        pa.field("event_time", INSTANT),
        pa.field("clock_offset_ms", pa.int64()),
        pa.field("source_epoch", pa.string()),
        pa.field("sequence", pa.int64()),
        pa.field("request_id", pa.string()),
        pa.field("user_id", pa.string()),
        pa.field("api_key_id", pa.string()),
        pa.field("model", pa.string()),
        pa.field("operation", pa.string()),
        pa.field("route", pa.string()),
        pa.field("region", pa.string()),
        pa.field("content_hash", pa.string()),
        pa.field("status", pa.string()),
        *[pa.field(name, pa.int64()) for name in REPORTED_COLUMNS],
        pa.field("reasoning_tokens", pa.int64()),
        pa.field("cached", pa.bool_()),
        pa.field("usage_source", pa.string()),
        pa.field("latency_ms", pa.float64()),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
    ]
)
"""One row per Kafka record; or per event of a batch, and per element of an event whose contract unnests
(`metering.contracts.unnest`): the column `element` has their numbers. `lsn` starts at 1. `frontier` is F of the journal
prefix that ends with the row's commit (null until `events` has a record); the rows of one commit share `logged_at` and
`log_date`, so a commit is one file. `family` says what an event is to an outcome (null: its type has no contract, or
the row is older than contracts are), `violation` which rule of which contract a rejected one breaks, and where.
`replay_mark` is that of a dead letter that was sent again, as its header says; it counts where `replays_lsn` has the
lsn of the rejected row that it names, and then `first_received_at` is when that was received, if a broker said so.
(Null: it is `received_at`.) `reception_mark` is what the header of a record of the past says of that; of a source whose
marks are trusted it is `first_received_at`. That decides lateness, a device's clock and the accept window, and nothing
else. `rules` is what decides from this row on, as JSON; null: nothing changed. Columns may be added, nullable, and are
never renamed; what contracts declare beyond these are columns, too."""


def earlier_columns(meter: Meter) -> tuple[str, str, str, str]:
    """What earlier releases said of a meter: quantity, price version, unit price and amount."""
    return (meter.value, f"{meter}_price_version", f"{meter}_unit_price", f"{meter}_amount")


EARLIER_METERED = tuple(
    pa.field(name, kind)
    for meter in Meter
    for name, kind in zip(earlier_columns(meter), (pa.int64(), pa.int64(), UNIT_PRICE, EARLIER_AMOUNT), strict=True)
)
"""Columns that only rows of earlier releases fill: since then `meters` says it."""


USAGE = pa.schema(
    [
        pa.field("lsn", pa.int64(), nullable=False),
        pa.field("log_date", pa.date32(), nullable=False),
        pa.field("logged_at", INSTANT, nullable=False),
        pa.field("account", pa.string(), nullable=False),
        pa.field("request_id", pa.string(), nullable=False),
        pa.field("user_id", pa.string()),
        pa.field("model", pa.string()),
        pa.field("status", pa.string()),
        pa.field("outcome", pa.string(), nullable=False),
        pa.field("request_lsn", pa.int64()),
        pa.field("completion_lsn", pa.int64()),
        pa.field("event_time", INSTANT, nullable=False),
        pa.field("received_at", INSTANT, nullable=False),
        pa.field("plan", pa.string()),
        pa.field("currency", pa.string()),
        *EARLIER_METERED,
        pa.field("sign", pa.int32(), nullable=False),
        pa.field("cause", pa.string(), nullable=False),
        pa.field("corrects_lsns", pa.list_(pa.int64())),
        pa.field("day", pa.date32()),
        pa.field("rules", pa.string()),
        pa.field("meters", pa.list_(METERED)),
        pa.field("dimensions", pa.string()),
        pa.field("first_received_at", INSTANT),
        pa.field("frontier", INSTANT),
        pa.field("members", pa.string()),
    ]
)
"""One signed row per request outcome. `received_at` is when it became a fact; where a part of it is a dead letter that
came back, `first_received_at` is when it would have become one if that had been right when it was first received (null:
it is `received_at`). `meters` has one entry per meter that it has a quantity of, or should have
(METERED); null in rows of earlier releases, which had columns per meter: `jobs.usage_entries` reads both. `dimensions`
is a JSON object of the texts that the configuration names, of the event and of the account as it was known then,
without those that the outcome lacks; null: none. `day` is the
account's calendar day in the zone in force at the start of its billing month (unknown account: UTC; null in rows of
older versions); a row that corrects others (`corrects_lsns`) copies it. `rules` as in the journal. `frontier` is F of
usage with the row's commit (null before `events` has a record, and in rows of older versions): it says what had closed.
`members` has the members that the row adds to periods, or removes, as JSON (`jobs.usage_members`); null: none. It is
always null where no meter of a period is declared, so that the release before, without this column, can go on writing.

A row of cause and outcome `decided` bills nothing. Somebody decided about the straggler that `corrects_lsns` names: of
the meter of its one entry, whose quantity is null; `dimensions` has the decision, the reason and who gave it;
`request_lsn` is the lsn of the decision's record. Its time of receipt is that record's, but not before the F that usage
had."""

AUTHOR = ("changed_by", "changed_at")
"""Who made a row of the catalog what it says, and when: in Postgres and in its versions. Null: of a release that did
not keep it, or of a deletion with SQL."""
SOURCE = ("source_lsn", "source_at")
"""The place of a change in the log of the database that it was captured from, and its commit time. Null: it
was not captured."""
_CIRCUMSTANCES = (
    *map(pa.field, AUTHOR, (pa.string(), INSTANT)),
    *map(pa.field, SOURCE, (pa.int64(), INSTANT)),
)

ACCOUNTS = pa.schema(
    [
        pa.field("lsn", pa.int64(), nullable=False),
        pa.field("account", pa.string(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("plan", pa.string()),
        pa.field("currency", pa.string()),
        pa.field("timezone", pa.string()),
        pa.field("effective_from", INSTANT, nullable=False),
        pa.field("deleted", pa.bool_(), nullable=False),
        pa.field("committed_at", INSTANT),
        *_CIRCUMSTANCES,
        pa.field("tags", pa.string()),
        pa.field("parent", pa.string()),
    ]
)
"""Every version of every account; `lsn` is that of its change in the journal, `committed_at` when that was made. `tags`
is a JSON object (`metering.tags`); null: none."""

PRICES = pa.schema(
    [
        pa.field("lsn", pa.int64(), nullable=False),
        pa.field("plan", pa.string(), nullable=False),
        pa.field("model", pa.string(), nullable=False),
        pa.field("meter", pa.string(), nullable=False),
        pa.field("currency", pa.string(), nullable=False),
        pa.field("effective_from", INSTANT, nullable=False),
        pa.field("unit_price", UNIT_PRICE),
        pa.field("deleted", pa.bool_(), nullable=False),
        *_CIRCUMSTANCES,
        pa.field("ends_at", INSTANT),
        pa.field("terms", pa.string()),
    ]
)
"""Every version of every price; `lsn` is that of its change in the journal. `terms` are tiers or a package, as JSON
(`metering.price_tiers`): then `unit_price` is null. A table has this column since a price first had terms (`GROWING`).
`ends_at` is of a deletion: the price of
its `effective_from` is none from then on, and never was one if that had not begun. Null in a deletion that a release
took which knew no end: that price is withdrawn, and its predecessor continues."""

SCHEMAS = {Table.JOURNAL: JOURNAL, Table.USAGE: USAGE, Table.ACCOUNTS: ACCOUNTS, Table.PRICES: PRICES}

GROWING = {Table.PRICES: ("terms",)}
"""Columns that a table gets with the first row that has a value there: until then the release before can go on."""

SCHEMA_VERSIONS = {Table.JOURNAL: 5, Table.USAGE: 5, Table.ACCOUNTS: 4, Table.PRICES: 3}
"""One more whenever a table gets columns (nullable ones: older rows have none). 1: those of 0.1.0, which kept no
version. A table says which it has; a program adds what an older one lacks, and refuses a newer one, unless that says
that the program may write it, too (EXPANSIONS)."""

EXPANSIONS: dict[Table, frozenset[int]] = {}
"""Versions that only add columns which may be null in any row, also in later ones, as they are in rows from before: the
release before goes on writing where this one has been. A version that is not here ends what older ones may write."""


def compatible_from(table: Table) -> int:
    """The oldest version whose programs may write such a table beside this version's."""
    version = SCHEMA_VERSIONS[table]
    while version in EXPANSIONS.get(table, ()):
        version -= 1
    return version
