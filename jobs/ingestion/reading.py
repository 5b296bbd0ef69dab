"""The bytes of records → columns of their content: whole blocks at once, and record by record where that fails.

Both ways give the same (`Paths.schema`). What a block's reader (`pyarrow.json`) would accept and a strict one would not
is searched for first, and read by the strict one; docs/decisions/0028-events-by-contract.md lists it.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import polars as pl
import pyarrow as pa
from pyarrow import json as arrow_json

from jobs.ingestion import strict_json
from jobs.ingestion.batches import may_be_batches
from jobs.ingestion.paths import DATA, EPOCH, SEQUENCE, Paths
from jobs.ingestion.unnesting import ELEMENT_BYTES, OF_ELEMENTS, NoElements, elements_of
from jobs.ingestion.unreadable import MAX_ERROR_CHARACTERS
from jobs.ingestion.violations import json_of, misread_text
from metering.contracts.model import Contract, Kind, Path, pointer
from metering.contracts.unnest import MAX_ELEMENTS
from metering.framing import frame_problem
from metering.texts import encodable, error_text
from metering.vocabulary import Reason

MAX_BLOCK_BYTES = 16 << 20
SPLIT = 16
MIN_RECORDS = 32
"""A block that is refused is split; one with no more records than this is read record by record."""
MAX_HINTED_RECORDS, MAX_LEFT_OUT = 1_000, 8
"""Of this many records, this many may be read one by one; if more are bad, all are read record by record."""
MIN_DEEP_BYTES = 2 * strict_json.MAX_LEVELS
"""A shorter record cannot be nested too deep."""
MAX_IN_VAIN = 4
"""How many times its records a block may be read in vain; what is left then is read record by record."""
ESCAPED_SURROGATE = r"\\u[dD][89a-fA-F]"
ESCAPED_PAIR = r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
TEXT_TOKEN = r'"(?:[^"\\]|\\.)*"\s*:?'
"""A text of a JSON document, with the colon behind it where it is a key."""
_ROW = re.compile(r" in row (\d+)")
_NOTHING: Mapping[str, Any] = {}


@dataclass(frozen=True)
class _Part:
    """Records [start, end) that are read as a block; `bad`: how many were left out beside it so far."""

    start: int
    end: int
    bad: int

    def __len__(self) -> int:
        return self.end - self.start

    def left_out(self, bad: int | None) -> list[int]:
        """The record that is not read with the others again."""
        return [] if bad is None or len(self) > MAX_HINTED_RECORDS or bad >= len(self) else [self.start + bad]

    def without(self, bad: int | None) -> list[_Part] | None:
        """What is read next instead, the first of it last; None: nothing more as a block."""
        if out := self.left_out(bad):
            if self.bad >= MAX_LEFT_OUT:
                return None
            parts = [_Part(out[0] + 1, self.end, self.bad + 1), _Part(self.start, out[0], self.bad + 1)]
            return [part for part in parts if len(part)]
        step = -(-len(self) // SPLIT)
        return [_Part(at, min(at + step, self.end), 0) for at in reversed(range(self.start, self.end, step))]


class Reader:
    """Reads blocks of records."""

    def __init__(self, paths: Paths) -> None:
        self._paths = paths
        self._schemas = list(paths.arrow_schemas)
        self._writes_differ = False

    def read(self, values: pl.Series) -> pl.DataFrame:
        """Values of records (binary) → one row each, in their order (`Paths.schema`)."""
        texts, is_unquoted = self._paths.number_texts.unquoted(_texts(values))
        has_unquoted = is_unquoted.any()
        written = values.zip_with(~is_unquoted, texts.cast(pl.Binary)) if has_unquoted else values
        is_simple = self._is_simple(values, texts)
        number = pl.int_range(len(values), dtype=pl.UInt32, eager=True)
        frames: list[tuple[pl.Series, pl.DataFrame]] = []
        slow = number.filter(~is_simple)
        for kept in self._alike(number.filter(is_simple), texts):
            found, refused = self._read_all(written.gather(kept).to_list())
            slow = pl.concat([slow, kept.gather(refused)])
            for rows, frame in found:
                numbers = kept.gather(rows)
                if not has_unquoted:
                    frames.append((numbers, frame))
                    continue
                is_of_refusing = frame["/type"].is_in(self._paths.number_texts.refusing).fill_null(value=False)
                is_refused = is_unquoted.gather(numbers) & is_of_refusing
                slow = pl.concat([slow, numbers.filter(is_refused)])
                frames.append((numbers.filter(~is_refused), frame.filter(~is_refused)))
        if len(frames) == 1 and slow.is_empty():
            return frames[0][1]
        if len(slow):
            frames.append((slow, self.read_strictly(values.gather(slow).to_list())))
        read = pl.concat([frame.with_columns(number=rows) for rows, frame in frames]) if frames else None
        return pl.DataFrame(schema=self._paths.schema) if read is None else read.sort("number").drop("number")

    def read_strictly(self, values: Sequence[bytes | None]) -> pl.DataFrame:
        """The same, record by record."""
        schema = self._paths.schema
        rows = [self._row_or_error(value) for value in values]
        columns = zip(*rows, strict=True) if rows else [() for _ in schema]
        return pl.DataFrame(
            [
                pl.Series(name, list(column), kind, strict=True)
                for (name, kind), column in zip(schema.items(), columns, strict=True)
            ]
        )

    def max_rows(self, values: pl.Series) -> pl.Series:
        """How many rows each value (binary) becomes at most: one, or one for each object in an array."""
        braces = _texts(values).str.count_matches("{", literal=True).cast(pl.Int64)
        # What is packed, or framed and so perhaps no text here: an element of an array is at least two bytes.
        is_packed = values.bin.contains(b"data_base64") | values.bin.starts_with(b"\0")
        packed = pl.when(is_packed).then(values.bin.size().cast(pl.Int64) // 2)
        # Of a batch each event may have that many, until they are counted.
        most = pl.when(may_be_batches(values)).then(values.bin.size().cast(pl.Int64)).otherwise(MAX_ELEMENTS)
        # An event of a batch that is no object is a row, too, until it is rejected.
        commas = pl.when(may_be_batches(values)).then(_texts(values).str.count_matches(",", literal=True) + 1)
        rows = pl.min_horizontal(pl.max_horizontal(braces, packed, commas.cast(pl.Int64)), most)
        return pl.select(rows).to_series().clip(lower_bound=1).fill_null(1)

    def read_elements(
        self, values: Sequence[bytes], contract: Contract, request_id: Path | None
    ) -> Iterator[tuple[pl.DataFrame, dict[int, str]]]:
        """Values that `read` could read → a row for each element of the array in each, in their order; some at a time.

        Its columns are those of `Paths.schema`, of the element with what surrounds the array, and OF_ELEMENTS.
        `request_id`: where the contract has that. The second: by number what is wrong with an array; such a record has
        no rows. At least one part comes, and all of a record are in one.
        """
        assert contract.unnest is not None, "only used then"
        tree = self._paths.tree_of_elements(contract)
        of_data = tree["data"]
        assert of_data is not None, "an array is in data"
        rows: list[tuple[Any, ...]] = []
        problems: dict[int, str] = {}
        taken_bytes = 0
        for number, value in enumerate(values):
            event = strict_json.document(value, tree)
            try:
                around, elements, size_bytes = elements_of(event, contract.unnest, of_data)
            except NoElements as problem:
                problems[number] = str(problem)
                continue
            taken_bytes += size_bytes + ELEMENT_BYTES * len(elements)
            if rows and taken_bytes > MAX_BLOCK_BYTES:
                yield self._elements(rows), problems
                rows, problems = [], {}
                taken_bytes = size_bytes + ELEMENT_BYTES * len(elements)
            for element, members in enumerate(elements, start=1):
                has_own = request_id is not None and request_id[:1] == DATA and request_id[1] in members
                row = self._typed({**event, "data": {**around, **members}}, None, None)
                rows.append((number, element, has_own, *row))
        yield self._elements(rows), problems

    def _elements(self, rows: list[tuple[Any, ...]]) -> pl.DataFrame:
        schema = {**OF_ELEMENTS, **self._paths.schema}
        columns = zip(*rows, strict=True) if rows else [() for _ in schema]
        named = zip(schema.items(), columns, strict=True)
        return pl.DataFrame([pl.Series(name, list(values), kind, strict=True) for (name, kind), values in named])

    def _row_or_error(self, value: bytes | None) -> tuple[Any, ...]:
        """The row of a value. One that this reader fails on is `unreadable`, unless it fails on an empty object too."""
        try:
            return self._row(value)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 -- no error here ends a driver; it is in the dead letter
            self._row(b"{}")
            return self._typed(_NOTHING, Reason.UNREADABLE.value, error_text(error, MAX_ERROR_CHARACTERS))

    def _row(self, value: bytes | None) -> tuple[Any, ...]:
        reason, problem, event = None, None, _NOTHING
        try:
            event = strict_json.document(value, self._paths.tree)
        except UnicodeDecodeError as error:
            reason, problem = Reason.NOT_UTF8.value, f"byte {error.start}: {error.reason}"
        except strict_json.HoldsNul as error:
            reason, problem = Reason.NUL_CHARACTER.value, str(error)
        except strict_json.NotStrict as error:
            reason, problem = Reason.MALFORMED.value, encodable(str(error))
        if reason is not None:
            problem = frame_problem(value) or problem
        return self._typed(event, reason, problem)

    def _typed(self, event: Mapping[str, Any], reason: str | None, problem: str | None) -> tuple[Any, ...]:
        """The members of a document as the columns hold them."""
        misread: dict[str, str] = {}
        values = [_member(event, path, typed, misread) for path, typed in self._paths.typed]
        for path in (SEQUENCE, EPOCH):
            is_number = isinstance(event.get(path[0]), strict_json.Number)
            values.append(None if is_number else _member(event, path, strict_json.TYPED[Kind.TEXT], misread))
            values.append(_member(event, path, strict_json.TYPED[Kind.INTEGER], misread) if is_number else None)
        has_data = isinstance(event.get("data"), dict)
        return (*values, has_data, reason, problem, misread_text(misread))

    def _is_simple(self, values: pl.Series, texts: pl.Series) -> pl.Series:
        """Whether a record is surely read alike by both readers, once the block's reader takes it."""
        looks, found, is_escaped = texts.alias("text").to_frame().select(**self._signs)
        if is_escaped.any():
            # The strict reader decides whether it is half a pair: a mere possibility need not refuse a block.
            halves = texts.filter(is_escaped).str.replace_all(ESCAPED_PAIR, "").str.contains(ESCAPED_SURROGATE)
            found = found.scatter(is_escaped.arg_true(), found.filter(is_escaped) | halves)
        is_long = values.bin.size() > MIN_DEEP_BYTES
        if is_long.any():
            nested = texts.filter(is_long).str.count_matches(r"[\[{]") > strict_json.MAX_LEVELS
            found = found.scatter(is_long.arg_true(), found.filter(is_long) | nested)
        return (looks & ~found).fill_null(value=False)

    @cached_property
    def _signs(self) -> dict[str, pl.Expr]:
        """Of a record (text): whether it looks like one document, holds what is read apart, and a surrogate."""
        text = pl.col("text")
        odd = text.str.contains_any([r"\u0000", "NaN", "Inf"])
        if self._paths.decimals_as_text is not None:
            odd |= text.str.contains(self._paths.decimals_as_text)
        if self._paths.arrays:
            # They are read one by one anyway: a block stops at keys that occur in several objects.
            odd |= text.str.contains_any([f'"{name}"' for name in self._paths.arrays])
        looks = text.str.starts_with("{") & text.str.ends_with("}")
        return {"looks": looks, "is_odd": odd, "is_escaped": text.str.contains(ESCAPED_SURROGATE)}

    def _alike(self, kept: pl.Series, texts: pl.Series) -> list[pl.Series]:
        """Numbers of records, in groups that probably write the numeric attributes in the same way."""
        if not self._writes_differ:
            return [kept] if len(kept) else []
        flags = pl.DataFrame({"number": kept, "text": texts.gather(kept)}).with_columns(
            pl.col("text").str.contains(rf'"{path[0]}"\s*:\s*[-0-9]').alias(path[0]) for path in (SEQUENCE, EPOCH)
        )
        return [part["number"] for part in flags.partition_by(SEQUENCE[0], EPOCH[0])]

    def _read_all(self, values: list[bytes]) -> tuple[list[tuple[pl.Series, pl.DataFrame]], pl.Series]:
        """The frames of blocks, with the numbers of their records, and the numbers of records that no block accepted.

        A block that is refused is read in parts. The reader usually reports at which record it stopped: that record is
        left out, until there are too many.
        """
        frames: list[tuple[pl.Series, pl.DataFrame]] = []
        refused: list[int] = []
        left = MAX_IN_VAIN * len(values)
        pending = [_Part(start, end, 0) for start, end in reversed(_blocks(values))]
        while pending:
            part = pending.pop()
            read = self._read_block(values[part.start : part.end])
            if isinstance(read, pl.DataFrame):
                number = pl.int_range(part.start, part.end, dtype=pl.UInt32, eager=True)
                is_doubtful = read["is_doubtful"]
                if is_doubtful.any():
                    refused += number.filter(is_doubtful).to_list()
                    number, read = number.filter(~is_doubtful), read.filter(~is_doubtful)
                frames.append((number, read.drop("is_doubtful")))
                continue
            left -= len(part)
            if left < 0 or len(part) <= MIN_RECORDS or (parts := part.without(read)) is None:
                refused += range(part.start, part.end)
            else:
                refused += part.left_out(read)
                pending += parts
        return frames, pl.Series(refused, dtype=pl.UInt32)

    def _read_block(self, values: list[bytes]) -> pl.DataFrame | int | None:
        """One row per record, with `is_doubtful`: whether it must be read alone.

        Or the number of a record that is probably bad; or None if it is unknown which.
        """
        block = b"\n".join(values)
        for schema in self._schemas:
            has_unknown = False
            try:
                try:
                    table = _parsed(block, schema, "error")
                except pa.ArrowInvalid as error:
                    if "unexpected field" not in str(error):
                        raise
                    has_unknown, table = True, _parsed(block, schema, "ignore")
            except pa.ArrowException as error:
                if any(pointer(path) in str(error) for path in (SEQUENCE, EPOCH)):
                    continue
                row = _ROW.search(str(error))
                return int(row[1]) if row else None
            if len(table) != len(values):
                return None
            # The next block is most likely written by the same sources.
            self._schemas.sort(key=lambda other: other is not schema)
            flat = self._flat(pl.DataFrame(table))
            doubtful = _may_repeat_a_key(values) if has_unknown else pl.lit(value=False)
            return None if flat is None else flat.with_columns(is_doubtful=doubtful)
        # From the next block on they are read apart.
        self._writes_differ = True
        return None

    def _flat(self, read: pl.DataFrame) -> pl.DataFrame | None:
        """The columns of `schema`; None where a number is invalid."""
        sequence_is_text, epoch_is_text = (read.schema[path[0]] == pl.String for path in (SEQUENCE, EPOCH))
        flat = read.select(self._paths.flat[sequence_is_text, epoch_is_text])
        return flat if flat.select(self._are_numbers).item() else None

    @cached_property
    def _are_numbers(self) -> pl.Expr:
        """Whether each double is finite, and each decimal fits its column, which nothing else checks."""
        kinds = self._paths.fields.items()
        doubles = [pl.col(pointer(path)).is_finite() for path, kind in kinds if kind is Kind.DOUBLE]
        decimals = [pl.col(pointer(path)).abs() < 10**11 for path, kind in kinds if kind is Kind.DECIMAL]
        is_every = [is_number.fill_null(value=True).all() for is_number in (*doubles, *decimals)]
        return pl.all_horizontal(pl.lit(value=True), *is_every)


def _parsed(block: bytes, schema: pa.Schema, unknown: str) -> pa.Table:
    return arrow_json.read_json(
        io.BytesIO(block),
        read_options=arrow_json.ReadOptions(use_threads=False, block_size=len(block) + 1),
        parse_options=arrow_json.ParseOptions(
            explicit_schema=schema, newlines_in_values=True, unexpected_field_behavior=unknown
        ),
    )


def _may_repeat_a_key(values: list[bytes]) -> pl.Series:
    """Whether a key may occur twice in an object: the reader does not look at keys that it ignores.

    In: records that are JSON, so that between two texts there is no quote. A key that occurs in two objects, or
    is written with escapes, is in doubt, too.
    """
    tokens = pl.Series(values, dtype=pl.Binary).cast(pl.String).str.extract_all(TEXT_TOKEN)
    keys = pl.DataFrame({"key": tokens}).with_row_index("record").explode("key", empty_as_null=False)
    keys = keys.filter(pl.col("key").str.ends_with(":"))
    escaped = pl.col("key").str.contains("\\", literal=True)
    counted = (
        keys.with_columns(pl.col("key").str.strip_chars_end(": \t\r\n"))
        .group_by("record")
        .agg(is_doubtful=(pl.col("key").n_unique() < pl.len()) | escaped.any())
    )
    doubtful = counted.filter("is_doubtful")["record"]
    return pl.Series("is_doubtful", [False] * len(values)).scatter(doubtful, True)


def _texts(values: pl.Series) -> pl.Series:
    """Binary values as texts; null where a value is none."""
    try:
        return values.cast(pl.String)
    except pl.exceptions.ComputeError:
        return pl.Series([_text(value) for value in values.to_list()], dtype=pl.String)


def _text(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


def _member(event: Mapping[str, Any], path: Path, typed: Callable[[Any], Any], misread: dict[str, str]) -> Any:
    """The value at a path, typed; a value of another kind is null, and goes into `misread` by its pointer.

    So does a text that is accepted as a number.
    """
    value: Any = event
    for level, name in enumerate(path):
        if value.__class__ is not dict:
            misread.setdefault(pointer(path[:level]), json_of(value))
            return None
        value = value.get(name)
        if value is None:
            return None
    found = typed(value)
    if found is None or (value.__class__ is str and found.__class__ is not str):
        misread.setdefault(pointer(path), json_of(value))
    return found


def _blocks(values: list[bytes]) -> list[tuple[int, int]]:
    """Ranges of records with no more bytes than a block may have, or a single record."""
    if sum(map(len, values)) <= MAX_BLOCK_BYTES:
        return [(0, len(values))] if values else []
    blocks, start, size = [], 0, 0
    for number, value in enumerate(values):
        if size + len(value) > MAX_BLOCK_BYTES and number > start:
            blocks.append((start, number))
            start, size = number, 0
        size += len(value)
    return [*blocks, (start, len(values))]
