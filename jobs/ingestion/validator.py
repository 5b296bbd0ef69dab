"""Kafka records → the columns of a journal row and the reason to reject it: one pure function of an Arrow batch.

It runs in Spark's Python workers, for the stream and for a batch frame alike. No record makes it raise: a value that
cannot be read is null, and the reason says so. A record that it still fails on is `unreadable` (`validated_in_parts`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

import polars as pl
import pyarrow as pa

from jobs.ingestion import batches, conventions, formats, reversals, unnesting
from jobs.ingestion.conformance import REQUEST_ID, fields_of, rules_of
from jobs.ingestion.conventions import Convention, Conventions
from jobs.ingestion.envelope import attributes, envelope_rules
from jobs.ingestion.fingerprints import contents, element_identities, identities
from jobs.ingestion.formats import DOCUMENT, FORM_PROBLEM, documents
from jobs.ingestion.paths import ARROW, Paths
from jobs.ingestion.reading import MAX_BLOCK_BYTES, Reader
from jobs.ingestion.receptions import mark_texts
from jobs.ingestion.replays import text_of
from jobs.ingestion.source_patterns import is_listed
from jobs.ingestion.types_of_topics import in_their_topics
from jobs.ingestion.unnesting import ELEMENT_BYTES, whole_digests
from jobs.ingestion.unreadable import validated_in_parts
from jobs.ingestion.violations import Rule, violations
from jobs.journal.elements import FIELD as ELEMENT
from jobs.journal.elements import KIND, is_record, place_in_event
from jobs.runtime.kafka import headers
from jobs.runtime.kafka.heartbeat import heartbeat
from jobs.streams import INSTANT, JOURNAL
from metering.contracts.model import Contract, Kind, pointer
from metering.contracts.unnest import COLUMN, element_text
from metering.instants import EPOCH
from metering.quantity_events import PREFIX
from metering.vocabulary import Family, Reason

LOG_APPEND_TIME = 1
"""Kafka's `timestampType` of a record that the broker stamped."""
FIRST_STORABLE_US, END_STORABLE_US = 0, 32_503_680_000_000_000
"""1970 and 3000: instants from, and before, which Arrow, Parquet, Postgres and Python all hold; others are null."""

MAX_ROWS_AT_ONCE = 50_000
"""4 MB of records may become a million rows: elements of arrays."""

OF_PLACE = (
    "topic",
    "partition",
    "offset",
    "stamped_at",
    "is_broker_stamp",
    "reception_mark",
    "replay_mark",
    "first_received_at",
)
OF_ENVELOPE = (
    *("reason", "violation", "identity", "content_digest", "source", "id", "type", "family", "account"),
    *("occurred_at", "sent_at", "occurred_us", "device_sent_us", "source_epoch", "sequence"),
)
OF_RECORD = ("key", "value", DOCUMENT, headers.COLUMN)
FOR_THE_DRIVER = {
    "stamped_at": INSTANT,
    "is_broker_stamp": pa.bool_(),
    "occurred_us": pa.int64(),
    "device_sent_us": pa.int64(),
    DOCUMENT: pa.binary(),
    headers.COLUMN: pa.string(),
}
"""Columns that the journal does not have, or only for rejected records."""


class EventValidator:
    """Validates each record alone: malformed, then invalid. (`event_times` decides too old and future.)"""

    def __init__(
        self,
        contracts: Mapping[str, Contract],
        devices: Iterable[str] = (),
        max_bytes: int = MAX_BLOCK_BYTES,
        of_sources: Sequence[Convention] = (),
        reversing: Sequence[str] | None = None,
        *,
        takes_batches: bool = False,
        types_of_topics: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """`devices`: patterns of the sources whose clocks are corrected. A value above `max_bytes` is not read.

        Conventions `of_sources` override those of contracts. `reversing`: patterns of the sources whose reversals
        count; None: any source's. `takes_batches`: a record may be an array of events. `types_of_topics`: the
        types of events that topics take, of those that do not take all.
        """
        self._contracts = dict(contracts)
        self._conventions = Conventions(of_sources)
        self._max_bytes = max_bytes
        self._devices = tuple(devices)
        self._has_quantities = any(contract.family is Family.QUANTITY for contract in contracts.values())
        self._unnests = any(contract.unnest is not None for contract in contracts.values())
        columns = {field.column for contract in contracts.values() for field in contract.fields}
        # A contract of before may have a column of its own by that name.
        self._takes_batches = takes_batches and COLUMN not in columns
        self._has_elements = self._unnests or self._takes_batches
        self._reversing = reversing
        self._types_of_topics = dict(types_of_topics or {})
        self._reader = Reader(Paths.of(contracts.values()))

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of a validated record: those of the journal from `topic` on that follow from the record alone.

        A record is one row; or, if all of it is accepted, one row per event of its batch, and per element of an event
        if its contract has elements. Then `element` is the number (`jobs.journal.elements`), and only the first row has
        key and value. (Without batches and such a contract there is no such column.) For the driver there are also
        `stamped_at`, `is_broker_stamp`, `occurred_us` and `device_sent_us` (microseconds since 1970), the record's
        headers, and DOCUMENT: the event as JSON, null where that is the value itself.
        `reason` is a `Reason` or null, and `violation` says which rule of which contract is broken where. `family` is
        null for a type without a contract. Columns of a rejected row are filled as far as they could be read.
        `content_digest` is null for a rejected row.
        """
        declared = {field.name: field.type for field in self.fields}
        kinds = {**{field.name: field.type for field in JOURNAL}, **FOR_THE_DRIVER, **declared}
        return pa.schema([pa.field(name, kinds[name]) for name in (*OF_PLACE, *OF_ENVELOPE, *declared, *OF_RECORD)])

    @cached_property
    def fields(self) -> list[pa.Field]:
        """The columns of the contracts' fields, and which of their quantities are part of others."""
        found = {field.column: ARROW[field.kind] for contract in self._contracts.values() for field in contract.fields}
        if self._has_quantities:
            found.setdefault(REQUEST_ID, ARROW[Kind.TEXT])
        declared = [*(pa.field(name, kind) for name, kind in found.items()), conventions.FIELD]
        return [*declared, ELEMENT] if self._has_elements else declared

    def digests(self, values: pl.Series) -> pl.Series:
        """What `content_digest` is of these values (binary) under these contracts; null where one cannot be read."""

        def no_digest(part: pl.Series, _error: str) -> pl.Series:
            return pl.Series([None], dtype=pl.Int64).new_from_index(0, len(part))

        return pl.concat(validated_in_parts(values, self._digests, no_digest, self._check))

    def _digests(self, received: pl.Series) -> pl.Series:
        values = _or_else(documents(received), received)
        read = attributes(self._reader.read(values)).with_columns(number=pl.int_range(pl.len(), dtype=pl.UInt32))
        parts = [
            self._contents(part, contract, values).select("number", "content_digest", "unreadable")
            for contract, part in self._by_contract(read)
        ]
        empty = pl.DataFrame(schema={"number": pl.UInt32, "content_digest": pl.Int64, "unreadable": pl.String})
        found = pl.concat([empty, *parts]).sort("number")
        return found.select(pl.when(pl.col("unreadable").is_null()).then("content_digest")).to_series()

    def _contents(self, events: pl.DataFrame, contract: Contract | None, values: pl.Series) -> pl.DataFrame:
        """Events of a contract with `content_digest`, which is of all elements where it has such."""
        if contract is None or contract.unnest is None:
            return events.with_columns(contents(events, contract))
        parts = [
            whole_digests(part.with_columns(contents(part, contract)))
            for part, _ in self._elements(events, contract, values)
        ]
        digests = pl.concat(parts)
        return events.join(digests, left_on="number", right_on="record", how="left", maintain_order="left")

    def validate(self, records: pa.RecordBatch | pa.Table, *, single: bool = False) -> pa.Table:
        """Records (looked_records.RECORDS) → `schema`, in their order, and elements in that of their array.

        `single`: each is one event, and an array is none.
        """
        return pa.concat_tables(self.validated_blocks(records, single=single))

    def validated_blocks(self, records: pa.RecordBatch | pa.Table, *, single: bool = False) -> Iterator[pa.Table]:
        """The same, in tables of about MAX_ROWS_AT_ONCE rows where records become several; at least one."""
        frame = pl.DataFrame(records)
        validate = self._validate_single if single else self._validate_block
        for part in self._parts(frame) if self._may_be_several(frame) else [frame]:
            yield from validated_in_parts(part, validate, self._unreadable, self._check)

    def verdicts(self, values: pl.Series) -> pl.DataFrame:
        """VERDICT of `validate` for values (binary) of records without headers, one row each, in their order.

        Each is one event: an array is none.
        """

        def unreadable(_: pl.DataFrame, error: str) -> pl.DataFrame:
            verdict = {"reason": Reason.UNREADABLE.value, "violation": f"Weir: {error}"}
            return pl.DataFrame([verdict], dict.fromkeys(VERDICT, pl.String))

        frame = pl.DataFrame({"value": values})
        parts = self._parts(frame) if self._unnests else [frame]
        found = [validated_in_parts(part, self._verdicts, unreadable, self._check) for part in parts]
        return pl.concat([frame for of_part in found for frame in of_part])

    def _verdicts(self, records: pl.DataFrame) -> pl.DataFrame:
        records = self._with_documents(records)
        read = self._reader.read(self._values(records))
        return one_each(self._decided(records, read, is_journaled=False)).select(VERDICT)

    def element_bytes(self, value: bytes) -> int:
        """What the elements of a record take at most, but the first and their texts; 0 where no contract has any."""
        values = pl.Series([value], dtype=pl.Binary)
        may_be_several = self._unnests or (self._takes_batches and batches.may_be_batches(values).item())
        return ELEMENT_BYTES * (self._reader.max_rows(values).item() - 1) if may_be_several else 0

    def _may_be_several(self, records: pl.DataFrame) -> bool:
        """Whether a record may become several rows, for all that is known before it is read."""
        return self._unnests or (self._takes_batches and batches.may_be_batches(self._received(records)).any())

    def _parts(self, records: pl.DataFrame) -> Iterator[pl.DataFrame]:
        rows = self._reader.max_rows(self._received(records))
        runs = (rows.cum_sum() // MAX_ROWS_AT_ONCE).rle().struct.unnest()["len"]
        start = 0
        for length in runs if len(runs) else [0]:
            yield records.slice(start, length)
            start += length

    def _validate_block(self, records: pl.DataFrame) -> pa.Table:
        return self._validate_events(self._with_events(self._with_documents(records)))

    def _validate_single(self, records: pl.DataFrame) -> pa.Table:
        return self._validate_events(self._with_documents(records))

    def _validate_events(self, events: pl.DataFrame) -> pa.Table:
        return self._validated(events, self._reader.read(self._values(events)))

    def _with_events(self, records: pl.DataFrame) -> pl.DataFrame:
        """Records, with a row for each event of a batch (`batches.expanded`)."""
        values = self._values(records)
        if not self._takes_batches or not batches.may_be_batches(values).any():
            return records
        return batches.expanded(records, values)

    def _check(self) -> None:
        """Validate a good event to the end, read in both ways. Raises what the validator raises."""
        value, place = heartbeat(0, 0, EPOCH), {"topic": "events", "partition": 0, "offset": 0}
        record = {**place, "key": b"weir", "value": value, "timestamp": EPOCH, "timestampType": LOG_APPEND_TIME}
        marks = dict.fromkeys(("replay_mark", "reception_mark"), pl.lit(None, pl.Binary))
        self._validate_block(pl.DataFrame([record]).with_columns(**marks))
        self._digests(pl.Series([value], dtype=pl.Binary))
        self._reader.read_strictly([value])

    def _unreadable(self, record: pl.DataFrame, error: str) -> pa.Table:
        """A record of which only its place and its bytes are stored."""
        row = record.select(
            *[pl.col(name) for name in ("topic", "partition", "offset", "key", "value")],
            *[pl.col(name) for name in record.columns if name == headers.COLUMN],
            stamped_at="timestamp",
            is_broker_stamp=pl.col("timestampType") == LOG_APPEND_TIME,
            reason=pl.lit(Reason.UNREADABLE.value),
            violation=pl.lit(f"Weir: {error}"),
        )
        return self._in_schema(row)

    def validate_strictly(self, records: pa.RecordBatch | pa.Table) -> pa.Table:
        """The same result as `validate`, with each record read alone, at ten times the cost."""
        frame = self._with_events(self._with_documents(pl.DataFrame(records)))
        return self._validated(frame, self._reader.read_strictly(self._values(frame).to_list()))

    def _with_documents(self, records: pl.DataFrame) -> pl.DataFrame:
        """Records with their DOCUMENT, null where the value itself is read; and what is wrong with their form."""
        received = self._received(records)
        given = records[headers.COLUMN] if headers.COLUMN in records.columns else _nothing(len(records))
        kept, made, problems = formats.of_records(received, given)
        return records.with_columns(made.alias(DOCUMENT), problems.alias(FORM_PROBLEM), kept.alias(headers.COLUMN))

    def _received(self, records: pl.DataFrame) -> pl.Series:
        """The records that are read; `quarantine` makes larger ones dead letters."""
        value = pl.col("value").cast(pl.Binary)
        return records.select(pl.when(value.bin.size() <= self._max_bytes).then(value)).to_series()

    def _values(self, records: pl.DataFrame) -> pl.Series:
        """The documents of events; null where their form is broken."""
        made, problems, received = records[DOCUMENT], records[FORM_PROBLEM], self._received(records)
        if made.null_count() == problems.null_count() == len(records):
            return received
        return pl.select(pl.when(problems.is_null()).then(_or_else(made, received))).to_series()

    def _validated(self, records: pl.DataFrame, read: pl.DataFrame) -> pa.Table:
        found = self._decided(records, read)
        if batches.EVENT in records.columns:
            found = batches.numbered(found, records)
        if COLUMN not in found.columns:
            none = [pl.lit(0, KIND).alias(COLUMN)] if self._has_elements else []
            return self._columns(records, found.with_columns(none))
        # By Arrow: behind each null that Polars gathers is a value, which is copied with it.
        is_first = found.select(place_in_event(pl.col(COLUMN)) <= 1).to_series()
        first = pl.select(pl.when(is_first).then(found["number"])).to_series().to_arrow()
        once = [pl.Series(name, records[name].to_arrow().take(first), records.schema[name]) for name in OF_RECORD]
        return self._columns(records.drop(OF_RECORD)[found["number"]].with_columns(once), found)

    def _decided(self, records: pl.DataFrame, read: pl.DataFrame, *, is_journaled: bool = True) -> pl.DataFrame:
        """Records, and what was read of them → the rows of `_of_contract`, in the order of `validate`."""
        any_misread = read["misread"].null_count() < len(read)
        families = {name: contract.family.value for name, contract in self._contracts.items()}
        number = pl.int_range(pl.len(), dtype=pl.UInt32).alias("number")
        form_problem = records[FORM_PROBLEM]
        if form_problem.null_count() < len(form_problem):
            read = with_form_problems(read, form_problem)
        events = attributes(read).with_columns(
            number, family=pl.col("type").replace_strict(families, default=None, return_dtype=pl.String)
        )
        events = events.with_columns(needs_subject=pl.col("family").ne_missing(Family.HEARTBEAT.value))
        reason, violation = _first_broken(events, envelope_rules(any_misread=any_misread))
        is_unreadable = events["unreadable"].is_not_null()
        events = events.with_columns(
            reason=pl.coalesce(events["unreadable"], reason),
            violation=pl.when(is_unreadable).then(_reader_of(form_problem) + pl.col("problem")).otherwise(violation),
        )
        if self._types_of_topics and "topic" in records.columns:
            events = in_their_topics(events, records["topic"], self._types_of_topics)
        none = None if len(events) else self._of_contract(events, None, any_misread=False, is_journaled=is_journaled)
        validated = [] if none is None else [none]
        for contract, part in self._by_contract(events):
            whole = part
            if contract is not None and contract.unnest is not None:
                whole, elements = self._unnested(part, contract, self._values(records))
                validated.append(elements)
            validated.append(self._of_contract(whole, contract, any_misread=any_misread, is_journaled=is_journaled))
        if not self._unnests:
            return pl.concat(validated, how="diagonal").sort("number")
        validated.append(pl.DataFrame(schema={COLUMN: KIND}))
        return pl.concat(validated, how="diagonal").with_columns(pl.col(COLUMN).fill_null(0)).sort("number", COLUMN)

    def _unnested(
        self, events: pl.DataFrame, contract: Contract, values: pl.Series
    ) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Events of a contract with elements → those rejected as a whole, and the validated elements of all others.

        Rejected as a whole are dead letters: because of the envelope, the array, or one element; see `reason` and
        `violation`.
        """
        is_whole = pl.col("reason").is_not_null() | ~pl.col("/data")
        whole, sound_events = events.filter(is_whole), events.filter(~is_whole)
        sound: list[pl.DataFrame] = []
        broken: dict[int, tuple[str, str]] = {}
        for elements, problems in self._elements(sound_events, contract, values):
            validated, verdicts = self._validated_elements(elements, contract)
            sound.append(validated)
            broken |= problems | verdicts
        rejected = sound_events.join(_verdicts(broken), on="number", how="inner", maintain_order="left")
        rejected = rejected.with_columns(reason=pl.col("broken"), violation=pl.col("because")).drop("broken", "because")
        return pl.concat([whole, rejected]), pl.concat(sound)

    def _validated_elements(
        self, elements: pl.DataFrame, contract: Contract
    ) -> tuple[pl.DataFrame, dict[int, tuple[str, str]]]:
        """All elements of some events → those of events that are taken, and by number the verdict of the others."""
        assert contract.unnest is not None, "only used then"
        any_misread = elements["misread"].null_count() < len(elements)
        validated = self._of_contract(elements, contract, any_misread=any_misread)
        digests = whole_digests(elements.select("record", "has_own_request_id", validated["content_digest"]))
        first = validated.filter(pl.col("reason").is_not_null()).unique("number", keep="first", maintain_order=True)
        broken = {
            number: (reason, f"{violation}; in {element_text(contract.unnest, element)}")
            for number, reason, violation, element in first.select("number", "reason", "violation", COLUMN).iter_rows()
        }
        sound = validated.join(first, on="number", how="anti").drop("content_digest")
        return sound.join(digests, left_on="number", right_on="record", how="left", maintain_order="left"), broken

    def _elements(
        self, events: pl.DataFrame, contract: Contract, values: pl.Series
    ) -> Iterator[tuple[pl.DataFrame, dict[int, tuple[str, str]]]]:
        """Events (`attributes` with `number`) → their elements, each as an event with the same number; some at a time.

        The second: by number the reason and the violation of those whose array cannot be read.
        """
        assert contract.unnest is not None, "only used then"
        readable = events.filter(pl.col("unreadable").is_null() & pl.col("/data"))["number"]
        request_id = unnesting.request_id_of(contract)
        path = None if request_id is None else request_id.path
        nothing = pl.lit(None, pl.String)
        place = f"{contract.type} {pointer(contract.unnest)}"
        reason = Reason.INVALID_DATA.value
        for part, problems in self._reader.read_elements(values.gather(readable).to_list(), contract, path):
            read = part.with_columns(readable.gather(part["record"]).alias("record"))
            elements = attributes(read).with_columns(
                number="record", family=pl.lit(contract.family.value), reason=nothing, violation=nothing
            )
            yield elements, {readable[row]: (reason, f"{place}: {text}") for row, text in problems.items()}

    def _by_contract(self, events: pl.DataFrame) -> Iterator[tuple[Contract | None, pl.DataFrame]]:
        """Events (`attributes`) by their contract. All types without one, which may be many, are one group."""
        known = pl.when(pl.col("type").is_in(list(self._contracts))).then("type")
        parts = events.with_columns(contract=known).partition_by("contract", as_dict=True, include_key=False)
        for (name,), part in parts.items():
            yield self._contracts.get(name), part

    def _of_contract(
        self, events: pl.DataFrame, contract: Contract | None, *, any_misread: bool, is_journaled: bool = True
    ) -> pl.DataFrame:
        """Events of one type, with the columns of its contract and the first rule that they break.

        `is_journaled`: whether the journal gets them; else the columns that it needs are left out.
        """
        if contract is None:
            return events.select(*_VALIDATED, *([contents(events, None)] if is_journaled else []))
        is_element = COLUMN in events.columns
        number, found = self._conventions.among(events, contract)
        of_fields = rules_of(contract, any_misread=any_misread, has_quantities=self._has_quantities)
        rules = [*of_fields, *conventions.rules_of(contract, number, found)]
        rules += reversals.rules_of(contract, events, self._reversing)
        if is_element:
            rules += unnesting.rules_of(contract)
        reason, violation = _first_broken(events, rules)
        is_first = pl.col("reason").is_null()
        validated = events.with_columns(
            reason=pl.when(is_first).then(reason).otherwise("reason"),
            violation=pl.when(is_first).then(violation).otherwise("violation"),
        )
        if not is_journaled:
            return validated.select(_VALIDATED)
        digests = contents(events, contract)
        columns = [*fields_of(contract), conventions.column_of(contract, number, found)]
        if contract.family is Family.QUANTITY:
            columns.append(_made_request_id(events))
        if is_element:
            return unnesting.numbered(
                validated.select(*_VALIDATED, digests, *columns, *unnesting.OF_ELEMENTS), contract
            )
        return validated.select(*_VALIDATED, digests, *columns)

    def _columns(self, records: pl.DataFrame, validated: pl.DataFrame) -> pa.Table:
        is_sent_by_device = is_listed(validated["source"], self._devices)
        columns = validated.with_columns(
            *[records[name] for name in ("topic", "partition", "offset", *OF_RECORD)],
            records["timestamp"].alias("stamped_at"),
            (records["timestampType"] == LOG_APPEND_TIME).alias("is_broker_stamp"),
            text_of(records["replay_mark"]),
            mark_texts(records["reception_mark"]),
            # For records whose mark counts; the driver decides which.
            pl.lit(None, pl.Datetime("us", "UTC")).alias("first_received_at"),
            _identities(validated),
            pl.when(pl.col("reason").is_null()).then("content_digest").alias("content_digest"),
            _storable("occurred_us").alias("occurred_at"),
            _storable("sent_us").alias("sent_at"),
            # The time of a receipt is not by the device's clock.
            pl.when(is_sent_by_device & ~validated["is_receipt"]).then("sent_us").alias("device_sent_us"),
        )
        return self._in_schema(columns)

    def _in_schema(self, columns: pl.DataFrame) -> pa.Table:
        """Rows with all columns of `schema`; null is what no event of these had."""
        missing = [name for name in self.schema.names if name not in columns.columns]
        columns = columns.with_columns(pl.lit(None).alias(name) for name in missing)
        return columns.select(self.schema.names).to_arrow().cast(self.schema)


VERDICT = ("reason", "violation", "type", "id", "source", "account")
"""Columns of `EventValidator.schema`."""
_VALIDATED = (
    *("number", "reason", "violation", "source", "id", "type", "family", "account"),
    *("occurred_us", "sent_us", "is_receipt", "source_epoch", "sequence"),
)


def one_each(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows of `EventValidator.schema`, of an event with elements only the first."""
    return rows.filter(is_record(rows.schema))


def _or_else(documents: pl.Series, values: pl.Series) -> pl.Series:
    """Documents, and the value where there is none."""
    return values if documents.null_count() == len(documents) else values.zip_with(documents.is_null(), documents)


def _verdicts(broken: Mapping[int, tuple[str, str]]) -> pl.DataFrame:
    """By number a reason and a violation → `number`, `broken`, `because`."""
    return pl.DataFrame(
        [(number, *verdict) for number, verdict in broken.items()],
        {"number": pl.UInt32, "broken": pl.String, "because": pl.String},
        orient="row",
    )


def _made_request_id(events: pl.DataFrame) -> pl.Expr:
    """The request id of a quantity, which is of no request: made of its identity."""
    return (pl.lit(PREFIX) + pl.lit(_identities(events)).bin.encode("hex")).alias(REQUEST_ID)


def _first_broken(events: pl.DataFrame, rules: Sequence[Rule]) -> tuple[pl.Series, pl.Series]:
    """The reason and the text of the first rule that each event breaks; null where it breaks none."""
    nothing = pl.Series([None], dtype=pl.String).new_from_index(0, len(events))
    if not rules:
        return nothing, nothing
    broken = events.select(rule.is_broken.alias(str(number)) for number, rule in enumerate(rules))
    if not any(is_broken.any() for is_broken in broken.iter_columns()):
        return nothing, nothing
    first = broken.select(
        pl.coalesce(pl.when(str(number)).then(pl.lit(number, pl.Int32)) for number in range(len(rules)))
    ).to_series()
    reasons = pl.Series([rule.reason.value for rule in rules])
    return reasons.gather(first), violations(events, rules, first)


def _reader_of(form_problem: pl.Series) -> pl.Expr:
    """Who speaks of a record that cannot be read: the standard that it breaks, or Weir, which failed on it."""
    is_ours = pl.col("unreadable") == Reason.UNREADABLE.value
    is_of_form = form_problem.is_not_null()
    return (
        pl.when(is_of_form)
        .then(pl.lit("CloudEvents over Kafka: "))
        .when(is_ours)
        .then(pl.lit("Weir: "))
        .otherwise(pl.lit("JSON (RFC 8259): "))
    )


def with_form_problems(read: pl.DataFrame, problems: pl.Series) -> pl.DataFrame:
    """`read` (`Paths.schema`), where records whose form is broken are malformed, and their `problem` says so."""
    is_broken = problems.is_not_null()
    return read.with_columns(
        unreadable=pl.when(is_broken).then(pl.lit(Reason.MALFORMED.value)).otherwise("unreadable"),
        problem=pl.when(is_broken).then(problems).otherwise("problem"),
    )


def _identities(events: pl.DataFrame) -> pl.Series:
    has_elements = COLUMN in events.columns and (events[COLUMN] > 1).any()
    return element_identities(events) if has_elements else identities(events["source"], events["id"])


def _nothing(count: int) -> pl.Series:
    return pl.Series([None], dtype=pl.String).new_from_index(0, count)


def _storable(microseconds: str) -> pl.Expr:
    at = pl.col(microseconds)
    return pl.when((at >= FIRST_STORABLE_US) & (at < END_STORABLE_US)).then(at).cast(pl.Datetime("us", "UTC"))
