"""A payload's bytes → what its JSON says, in one strict parse (docs/decisions/0002-strict-json.md: why this way).

Spark's Variant reader refuses what RFC 8259 refuses, duplicate keys and lone surrogates too, but it stops after the
first document. So the payload is read as the first element of an array whose second is a seal that no producer can
foresee: the seal stands in its place only when the payload is exactly one JSON text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import add

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from metering.meters import REPORTED_COLUMNS
from metering.words import Reason

REQUEST_TEXTS = ("user_id", "api_key_id", "model", "operation", "route", "region", "content_hash")
COMPLETION_TEXTS = ("status", "usage_source")
TEXTS = ("request_id", *REQUEST_TEXTS, *COMPLETION_TEXTS)
SCALARS = (*REPORTED_COLUMNS, "cached", "latency_ms")

# A variant is cast to binary from a JSON string only; as `string`, a number would come through as its digits.
_TEXT, _ANY = "binary", "variant"
_ATTRIBUTES = {
    **dict.fromkeys(("specversion", "id", "source", "type", "subject", "time"), _TEXT),
    **dict.fromkeys(("senttime", "sequence", "sourceepoch", "data_base64"), _ANY),
}
_FIELDS = {**dict.fromkeys(TEXTS, _TEXT), **dict.fromkeys(SCALARS, _ANY)}

_PAYLOAD, _SEAL, _DATA = "$[0]", "$[1]", "$[0].data"


def read(records: DataFrame) -> DataFrame:
    """`records` of the Kafka source, each with what its payload says.

    Adds `unreadable` (a `Reason`; null when the payload is one JSON object), `document` (a variant, for `json_of`),
    `attributes` (a struct of the envelope), `fields` (a struct of `data`) and `keys` (the keys of `data`, sorted); the
    last two are null unless `data` is an object. In the structs a text is binary, null unless a JSON string stood
    there; everything else is a variant of what stood there.
    """
    text = F.col("value").cast("string")
    # The seal depends on where the broker put the record, which its producer cannot know when writing it.
    sealed = records.withColumn("seal", F.xxhash64("topic", "partition", "offset", "timestamp", "value"))
    checked = sealed.withColumn("unreadable", _unreadable_text(text))
    whole = F.concat(F.lit("["), text, F.lit(","), F.col("seal").cast("string"), F.lit("]"))
    # Without a border the parse would be repeated in every expression and filter that uses it.
    document = F.when(F.col("unreadable").isNull(), F.try_parse_json(whole))
    parsed = settled(checked.withColumn("document", document), "document")
    is_one_text = member("document", _SEAL, "bigint") == F.col("seal")
    opened = parsed.withColumn("attributes", F.when(is_one_text, member("document", _PAYLOAD, _struct(_ATTRIBUTES))))
    return opened.select(
        *records.columns,
        F.coalesce("unreadable", F.when(F.col("attributes").isNull(), Reason.MALFORMED)).alias("unreadable"),
        "document",
        "attributes",
        member("document", _DATA, _struct(_FIELDS)).alias("fields"),
        # Nothing is an array of booleans, so the values cost nothing and the keys are left.
        F.map_keys(member("document", _DATA, "map<string,array<boolean>>")).alias("keys"),
    )


def settled(records: DataFrame, *names: str) -> DataFrame:
    """`records` with the columns `names` computed, so that what follows is a step of its own.

    A generator is a border that the optimizer moves no expression across, and at which Spark begins a new method.
    Java's second compiler gives up methods that become too large, and judging takes twice as long then.
    """
    others = [name for name in records.columns if name not in names]
    return records.select(*others, F.inline(F.array(F.struct(*names))))


def member(value: str | Column, path: str, data_type: str) -> Column:
    """What stands at `path` of a variant, cast to `data_type`; null where nothing stands or it cannot be cast."""
    return F.try_variant_get(value, path, data_type)


def canonical_json(attribute: str) -> Column:
    """A top-level member of the payload with sorted keys and without white space; null where it is missing."""
    return F.to_json(member("document", f"{_PAYLOAD}.{attribute}", "variant"))


def json_type(value: Column) -> Column:
    """`STRING, BIGINT, DECIMAL(p,s), DOUBLE, BOOLEAN, VOID` (JSON's null); null for an object, an array, or nothing."""
    # Spark describes a value by calling itself for each of its levels, and an array by comparing what its elements hold
    # with all before them: 40 s for one of a mebibyte.
    is_nested = member(value, "$", "array<variant>").isNotNull() | member(value, "$", "map<string,variant>").isNotNull()
    return F.when(~is_nested, F.schema_of_variant(value))


def is_given(value: Column) -> Column:
    """Whether something other than null stood there."""
    return value.isNotNull() & ~F.is_variant_null(value)


def is_given_at(attribute: str) -> Column:
    """`is_given` of a member of the payload, by its path (`subject`, `data.model`)."""
    return is_given(member("document", f"{_PAYLOAD}.{attribute}", "variant"))


def texts_given(names: Sequence[str]) -> Column:
    """How many of the members `names` of the payload's `data` hold something; 0 when `data` is no object."""
    # One by one: Spark interprets a projection with a lambda, and prepares that anew for every task.
    members = member("document", _DATA, "map<string,variant>")
    return reduce(add, (is_given(F.try_element_at(members, F.lit(name))).cast("int") for name in names))


def _unreadable_text(text: Column) -> Column:
    # Nearly no payload holds these six characters, so the expression that spares `\\u0000`, which is text, seldom runs.
    has_nul = F.contains(text, F.lit(r"\u0000")) & text.rlike(r"(?<!\\)(?:\\\\)*\\u0000")
    return (
        F.when(text.isNull(), Reason.MALFORMED)
        .when(~F.is_valid_utf8(text), Reason.NOT_UTF8)
        .when(has_nul, Reason.NUL_CHARACTER)
    )


def _struct(types: Mapping[str, str]) -> str:
    return f"struct<{','.join(f'{name}:{data_type}' for name, data_type in types.items())}>"
