"""A document is a contract, or refused with a sentence that says where and what is allowed: never anything else."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.ingestion.config import IngestionConfig
from jobs.ingestion.documents import records_of
from jobs.ingestion.formats import DOCUMENT
from jobs.ingestion.paths import ARROW
from jobs.ingestion.validator import EventValidator
from jobs.streams import JOURNAL
from metering.contracts.field_reader import ContractRefused
from metering.contracts.keywords import COLUMNS, ENVELOPE, ENVELOPE_OTHER, MAX_FIELDS, RESERVED
from metering.contracts.model import Contract, Kind, pointer
from metering.contracts.schema import contract_of, contracts_of
from metering.contracts.shipped import shipped
from metering.vocabulary import Family, Reason

COLUMN = "x-weir-column"
COMPLETION = "ai.inference.completion.v1"


def text(column: str, **more: Any) -> dict[str, Any]:
    return {"type": "string", COLUMN: column, **more}


NEEDED = {"request_id": text("request_id"), "model": text("model")}


def document(fields: Mapping[Any, Any] | None = None, **more: Any) -> dict[str, Any]:
    """A contract of requests, with further fields of data."""
    data = {"properties": {**NEEDED, **(fields or {})}}
    return {"$id": "t.v1", "x-weir-family": "request", "properties": {"data": data}, **more}


def of_type(name: str) -> dict[str, Any]:
    return {**document(), "$id": name}


def with_field(**schema: Any) -> dict[str, Any]:
    return document({"g": {COLUMN: "g", **schema}})


def building_on(base: str = COMPLETION, name: str = "t.v1", **more: Any) -> dict[str, Any]:
    return {"$id": name, "allOf": [{"$ref": f"weir:{base}"}], **more}


def of_data(**fields: Any) -> dict[str, Any]:
    return {"data": {"properties": fields}}


def loaded(*own: Any) -> dict[str, Contract]:
    return contracts_of(own, shipped())


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = text("deep")
    for _ in range(levels):
        schema = {"properties": {"in": schema}}
    return schema


REFUSED: dict[str, tuple[Any, str]] = {
    "no object": ([], "a contract is a JSON object, not list"),
    "no $id": (
        {"x-weir-family": "request"},
        "a contract's $id is the type of its events, 1 to 512 bytes; it is None",
    ),
    "an $id of too many bytes": (of_type("é" * 257), "1 to 512 bytes; it is 'éé"),
    "an $id with a control character": (of_type("a\nb"), "1 to 512 bytes; it is 'a\\nb'"),
    "an $id that is a reference": (of_type("weir:x"), "does not begin with weir:, as a $ref does; it is 'weir:x'"),
    "a field named as a pattern": (document({"^a.*$": text("g")}), "a field's name is no pattern; it is '^a.*$'"),
    "a field named as all of them": (document({"*": text("g")}), "a field's name is no pattern; it is '*'"),
    "an attribute that is none": (
        {**document(), "properties": {**document()["properties"], "Trace-Id": text("g")}},
        "an attribute of CloudEvents has a name of a-z and 0-9; it is 'Trace-Id'",
    ),
    "a reason that is about no field": (
        with_field(type="string", **{"x-weir-reason": "too_large"}),
        "x-weir-reason is one of invalid_specversion,",
    ),
    "fewer tokens than none": (
        document({"n": {"type": "integer", "minimum": -1, COLUMN: "input_tokens"}}),
        "the column input_tokens holds 0 to 10000000000",
    ),
    "more tokens than may be": (
        document({"n": {"type": "integer", "maximum": 10**10 + 1, COLUMN: "output_tokens"}}),
        "the column output_tokens holds 0 to 10000000000",
    ),
    "a request that is a heartbeat": (
        {**of_type("ai.inference.request.v1"), "x-weir-family": "heartbeat"},
        "x-weir-family of ai.inference.request.v1 is request; it is 'heartbeat'",
    ),
    "a heartbeat that is a completion": (
        {**of_type("source.heartbeat.v1"), "x-weir-family": "completion"},
        "x-weir-family of source.heartbeat.v1 is heartbeat; it is 'completion'",
    ),
    "an $id that is no Unicode": (of_type("\ud800"), "1 to 512 bytes; it is '\\ud800'"),
    "no family": (
        {"$id": "t.v1", "properties": of_data(**NEEDED)},
        "contract t.v1: x-weir-family is one of request, completion, both, quantity, heartbeat, reversal; it is None",
    ),
    "an unknown family": ({**document(), "x-weir-family": "usage"}, "heartbeat, reversal; it is 'usage'"),
    "an unknown keyword of the document": (
        document(additionalProperties=False),
        "contract t.v1: Weir does not check additionalProperties, so it is not allowed; allowed are $id, $schema, ",
    ),
    "an unknown keyword of a field": (
        with_field(type="string", pattern="^a"),
        "contract t.v1 at /data/g: Weir does not check pattern, so it is not allowed; allowed are $schema, ",
    ),
    "an unknown annotation": (
        with_field(**{"type": "string", "x-weir-max-byte": 3}),
        "does not check x-weir-max-byte,",
    ),
    "a keyword of the document in an object": (
        document({"o": {"type": "object", "x-weir-family": "request"}}),
        "at /data/o: Weir does not check x-weir-family",
    ),
    "a column of an object": (
        document({"o": {"type": "object", COLUMN: "o"}}),
        "at /data/o: Weir does not check x-weir-",
    ),
    "a document that is no object": (document(type="array"), "object with properties; its type is 'array'"),
    "properties that are none": (document(properties=[]), "contract t.v1: properties is an object; it is []"),
    "a field that is no object": (document({"g": True}), "/data/g: a field is described by an object; it is True"),
    "a field without a name": (document({"": text("g")}), "a field has a name, of Unicode without U+0000; it is ''"),
    "a name with U+0000": (document({"\0": text("g")}), "without U+0000; it is '\\x00'"),
    "a name that is no Unicode": (document({"\ud800": text("g")}), "at /data: a field has a name, of Unicode"),
    # As YAML reads `on:` and `1:`.
    "a name that is a boolean": (document({True: text("g")}), "at /data: a field has a name, of Unicode"),
    "an attribute whose name is a number": (
        document(properties={**of_data(**NEEDED), 1: text("g")}),
        "t.v1: a field has a name, of Unicode without U+0000; it is 1",
    ),
    "unknown keywords of two kinds": (
        document({"g": {**text("g"), "pattern": "a", 1: 2}}),
        "at /data/g: Weir does not check 1, so it is not allowed",
    ),
    "a description that is a date": (
        with_field(type="string", description=date(2026, 1, 1)),
        "at /data/g: description is a text; it is datetime.date(2026, 1, 1)",
    ),
    "a title that is no text": (document(title=["t"]), "contract t.v1: title is a text; it is ['t']"),
    "a dialect that is no text": (document({"o": {"$schema": 1, "properties": {}}}), "at /data/o: $schema is a text"),
    "a description that is no Unicode": (document(description="\ud800"), "description is a text; it is '\\ud800'"),
    "required without a property": (
        document(required=["subject"]),
        "contract t.v1 at /subject: it is required, but no property describes it",
    ),
    "required that is no list": (document(required="data"), "required is a list; it is 'data'"),
    "required of what is no name": (
        document(required=[["data"]]),
        "required holds names of properties; it holds ['data']",
    ),
    "required below an optional object": (
        document({"o": {"required": ["g"], "properties": {"g": text("g")}}}),
        "contract t.v1 at /data/o/g: it is required, so /data/o must be required, too",
    ),
    "not empty below an optional object": (
        document({"o": {"properties": {"g": text("g", minLength=1)}}}),
        "at /data/o/g: it is required, so /data/o must be required, too",
    ),
    "two fields of one column": (
        document({"g": text("g"), "h": text("g")}),
        "contract t.v1 at /data/g: two fields fill the column g; each needs its own",
    ),
    "no column": (
        document({"g": {"type": "string"}}),
        "names the journal's column: a-z, 0-9 and _, at most 63; it is None",
    ),
    "a column that is no name": (document({"g": text("G")}), "a-z, 0-9 and _, at most 63; it is 'G'"),
    "a column that is too long": (document({"g": text("g" * 64)}), "a-z, 0-9 and _, at most 63; it is 'ggg"),
    "a reserved column": (
        document({"g": text("lsn")}),
        "/data/g: lsn is a column that Weir fills itself; choose another",
    ),
    "a column of another kind": (
        document({"g": text("input_tokens")}),
        "contract t.v1 at /data/g: the column input_tokens holds integer; this field is text",
    ),
    "an attribute that is a number": (
        document(properties={**of_data(**NEEDED), "sequence": {"type": "integer", COLUMN: "n"}}),
        "at /sequence: of the envelope only attributes that are texts can have a column",
    ),
    "an attribute that Weir reads itself": (
        document(properties={**of_data(**NEEDED), "senttime": text("t")}),
        "at /senttime: of the envelope only attributes that are texts can have a column",
    ),
    "an attribute that holds an object": (
        document(properties={**of_data(**NEEDED), "trace": {"properties": {"g": text("g")}}}),
        "at /trace: only data holds objects: attributes of CloudEvents are texts and numbers",
    ),
    "no field of data": (
        {"$id": "t.v1", "x-weir-family": "request", "properties": {"id": text("request_id"), "source": text("model")}},
        "contract t.v1 at /data: it describes no field of data",
    ),
    "no request": (
        {"$id": "t.v1", "x-weir-family": "completion", "properties": of_data(g=text("g"))},
        "contract t.v1: an event of the family completion needs a field with the column request_id",
    ),
    "no model of a request": (
        {"$id": "t.v1", "x-weir-family": "both", "properties": of_data(r=text("request_id"))},
        "an event of the family both needs a field with the column model",
    ),
    "an unknown reason": (
        with_field(**{"type": "string", "x-weir-reason": "invalid_gpu"}),
        "at /data/g: x-weir-reason is one of invalid_specversion, ",
    ),
    "no type": (
        with_field(),
        "/data/g: its type is one of string, integer, number, boolean, and may be null; it is None",
    ),
    "an array": (with_field(type="array"), "and may be null; it is 'array'"),
    "nothing but null": (with_field(type="null"), "and may be null; it is 'null'"),
    "two types": (with_field(type=["string", "integer"]), "and may be null; it is ['string', 'integer']"),
    "a type within a type": (with_field(type=[["string"]]), "and may be null; it is [['string']]"),
    "a type that is an object": (with_field(type={"a": 1}), "and may be null; it is {'a': 1}"),
    "an object or a text": (with_field(type=["object", "string"]), "Weir does not check x-weir-column"),
    "a format of a text": (
        with_field(type="string", format="date"),
        "/data/g: format is double, of a number; it is 'date'",
    ),
    "a format of an integer": (with_field(type="integer", format="double"), "format is double, of a number"),
    "an enum of numbers": (
        with_field(enum=[1, 2]),
        "at /data/g: enum is of a string, holds texts, and may hold null; it is [1",
    ),
    "an enum of nothing": (
        with_field(enum=[None]),
        "enum is of a string, holds texts, and may hold null; it is [None]",
    ),
    "an enum with an empty text": (with_field(enum=[""]), "enum is of a string, holds texts, and may hold null"),
    "an enum of an integer": (with_field(type="integer", enum=["1"]), "enum is of a string, holds texts"),
    "an enum that is no Unicode": (with_field(enum=["\ud800"]), "enum is of a string, holds texts"),
    "an enum that is no list": (with_field(enum="a"), "enum is a list; it is 'a'"),
    "an enum of too long a text": (
        with_field(**{"enum": ["abc"], "x-weir-max-bytes": 2}),
        "at /data/g: enum holds a text of more than 2 bytes: 'abc'",
    ),
    "bytes of a number": (
        with_field(**{"type": "integer", "x-weir-max-bytes": 3}),
        "at /data/g: x-weir-max-bytes is 1 to 512, of a string; it is 3",
    ),
    "too many bytes": (
        with_field(**{"type": "string", "x-weir-max-bytes": 513}),
        "is 1 to 512, of a string; it is 513",
    ),
    "bytes that are no number": (with_field(**{"type": "string", "x-weir-max-bytes": True}), "of a string; it is True"),
    "bytes that are nothing": (with_field(**{"type": "string", "x-weir-max-bytes": None}), "of a string; it is None"),
    "a length": (with_field(type="string", minLength=2), "at /data/g: minLength is 0 or 1, of a string; it is 2"),
    "a length of a number": (with_field(type="integer", minLength=1), "minLength is 0 or 1, of a string; it is 1"),
    "a bound that is a text": (with_field(type="integer", minimum="0"), "minimum is a number, of a number; it is '0'"),
    "a bound that is a boolean": (
        with_field(type="integer", maximum=True),
        "maximum is a number, of a number; it is True",
    ),
    "a text that may be a number": (
        with_field(**{"type": "string", "x-weir-number": "text_or_number"}),
        "at /data/g: x-weir-number is text_or_number, of an integer or number; it is 'text_or_number'",
    ),
    "a number that may be what nobody knows": (
        with_field(**{"type": "integer", "x-weir-number": True}),
        "at /data/g: x-weir-number is text_or_number, of an integer or number; it is True",
    ),
    "a number of the base that is said otherwise": (
        building_on(properties=of_data(input_tokens={"maximum": 9, "x-weir-number": "text_or_number"})),
        "at /data/input_tokens: the contract that it builds on defines it differently; leave it out here",
    ),
    "a text of the base that may be a number": (
        building_on(properties=of_data(status={"x-weir-number": "text_or_number"})),
        "at /data/status: x-weir-number is text_or_number, of an integer or number",
    ),
    "a bound of a text": (with_field(type="string", minimum=0), "/data/g: minimum is a number, of a number; it is 0"),
    "a bound that no integer can be": (
        with_field(type="integer", minimum=0.5),
        "minimum is 0.5, which no integer can be",
    ),
    "a bound that is no number": (with_field(type="number", maximum=float("inf")), "maximum is inf, which no decimal"),
    "a bound with seven decimals": (
        with_field(type="number", minimum=1e-7),
        "minimum has more than six decimals: 1e-07",
    ),
    "a bound of many digits with seven decimals": (
        with_field(type="number", minimum=Decimal("12345678901234567890123.0000001")),
        "minimum has more than six decimals",
    ),
    "bounds that cross": (with_field(type="integer", minimum=5, maximum=1), "no value is at least 5 and at most 1"),
    "a bound beyond what a quantity can be": (
        with_field(type="number", minimum=1e30),
        "no value is at least 1000000000000000000000000000000 and at most 99999999999.999999",
    ),
    "fields that are too deep": (document({"o": nested(8)}), "fields are at most 8 levels deep"),
    "too many fields": (
        document({f"g{number}": text(f"g{number}") for number in range(MAX_FIELDS - 1)}),
        "contract t.v1: it has 211 fields; at most 210",
    ),
    "a $ref to what is not shipped": (
        building_on("t.v0"),
        'contract t.v1: allOf holds only {"$ref": …} with one of weir:ai.inference.completion.v1, ',
    ),
    "a $ref to another place": ({"$id": "t.v1", "allOf": [{"$ref": "#/$defs/a"}]}, "it holds {'$ref': '#/$defs/a'}"),
    "a base with something beside it": (
        {"$id": "t.v1", "allOf": [{"$ref": f"weir:{COMPLETION}", "required": ["data"]}]},
        "'required': ['data']}",
    ),
    "a base that is no list": ({"$id": "t.v1", "allOf": {"$ref": f"weir:{COMPLETION}"}}, "allOf is a list; it is {"),
    "a field of the base that is said otherwise": (
        building_on(properties=of_data(status={"enum": ["completed"], COLUMN: "status"})),
        "contract t.v1 at /data/status: the contract that it builds on defines it differently; leave it out here",
    ),
    "a field of the base that is made an object": (
        building_on(properties=of_data(status={"properties": {"g": text("g")}})),
        "contract t.v1 at /data/status: it is a value in one place and an object in another",
    ),
    "a column of the base again": (
        building_on(properties=of_data(state=text("status"))),
        "contract t.v1 at /data/status: two fields fill the column status; each needs its own",
    ),
    "a path of another kind than elsewhere": (
        document({"status": {"type": "boolean", COLUMN: "is_done"}}),
        "/data/status is text in contract ai.inference.completion.v1, and boolean in t.v1; give one of the two another",
    ),
    "a path that is an object elsewhere": (
        document({"usage": text("g")}),
        "/data/usage is an object in contract ai.inference.completion.v2, and text in t.v1; give one of the two",
    ),
}


@pytest.mark.parametrize(("own", "sentence"), REFUSED.values(), ids=REFUSED)
def test_an_invalid_contract_is_refused_with_the_path_and_allowed_values(own: Any, sentence: str) -> None:
    with pytest.raises(ContractRefused) as refused:
        loaded(own)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


def test_two_documents_of_one_type_are_refused() -> None:
    with pytest.raises(ContractRefused, match=r"contract t\.v1: there are two documents with this \$id; leave one"):
        loaded(document(), document())


def test_one_column_of_two_kinds_is_refused() -> None:
    integer = {**document({"b": {"type": "integer", COLUMN: "g"}}), "$id": "t.v2"}
    with pytest.raises(ContractRefused) as refused:
        loaded(document({"a": text("g")}), integer)
    assert str(refused.value) == (
        "the column g is text in contract t.v1, and integer in t.v2; choose another column for one of the two"
    )


def test_a_configuration_refuses_an_invalid_contract_with_the_same_message() -> None:
    with pytest.raises(ValueError, match=r"contract t\.v1: Weir does not check additionalProperties"):
        IngestionConfig(contracts=(document(additionalProperties=False),))


def test_shipped_contracts_are_contracts() -> None:
    found = loaded()
    assert set(found) == set(shipped())
    assert {contract.family for contract in found.values()} == set(Family) - {Family.QUANTITY}
    assert all(contract.description for contract in found.values())


def test_a_document_replaces_the_shipped_one_with_its_id() -> None:
    own = {**of_type(COMPLETION), "x-weir-family": "completion"}
    found = loaded(own)
    assert set(found) == set(shipped())
    assert found[COMPLETION].family is Family.COMPLETION
    assert [field.column for field in found[COMPLETION].fields] == ["request_id", "model"]


def test_an_extended_contract_has_the_fields_and_family_of_its_base() -> None:
    own = building_on(name=COMPLETION, properties=of_data(gpu={"type": "number", "minimum": 0, COLUMN: "gpu"}))
    base, found = loaded()[COMPLETION], loaded(own)[COMPLETION]
    assert [field for field in found.fields if field.column != "gpu"] == list(base.fields)
    assert (found.family, found.description) == (base.family, base.description)
    (gpu,) = [field for field in found.fields if field.column == "gpu"]
    assert (gpu.pointer, gpu.kind, gpu.column, gpu.minimum) == ("/data/gpu", Kind.DECIMAL, "gpu", Decimal(0))


def test_a_contract_that_extends_a_replaced_one_has_the_shipped_fields() -> None:
    replacing = {**of_type(COMPLETION), "x-weir-family": "completion"}
    assert loaded(replacing, building_on())["t.v1"].fields == loaded()[COMPLETION].fields


def test_an_extended_contract_may_require_more_than_its_base() -> None:
    own = building_on(properties={"data": {"required": ["latency_ms"], "properties": {}}})
    (latency,) = [field for field in loaded(own)["t.v1"].fields if field.column == "latency_ms"]
    assert latency.is_required


@pytest.mark.parametrize(
    ("schema", "kind", "bounds"),
    [
        ({"type": "integer"}, Kind.INTEGER, ("-99999999999", "99999999999")),
        ({"type": "number"}, Kind.DECIMAL, ("-99999999999.999999", "99999999999.999999")),
        ({"type": ["null", "number"], "minimum": 0.1}, Kind.DECIMAL, ("0.1", "99999999999.999999")),
        ({"type": "number", "maximum": 1e30}, Kind.DECIMAL, ("-99999999999.999999", "99999999999.999999")),
        ({"type": "integer", "minimum": -1e12, "maximum": 7.0}, Kind.INTEGER, ("-99999999999", "7")),
        ({"type": "number", "format": "double", "minimum": 1e-9}, Kind.DOUBLE, ("1e-9", None)),
        ({"type": "boolean"}, Kind.BOOLEAN, (None, None)),
    ],
)
def test_a_quantity_is_bounded_by_what_can_be_billed(schema: Any, kind: Kind, bounds: tuple[str | None, ...]) -> None:
    *_, field = loaded(with_field(**schema))["t.v1"].fields
    assert (field.kind, field.is_required, field.max_bytes) == (kind, False, None)
    assert (field.minimum, field.maximum) == tuple(None if bound is None else Decimal(bound) for bound in bounds)


def test_a_text_has_at_most_as_many_bytes_as_a_name_unless_it_says_fewer() -> None:
    for schema, most in (
        ({"type": "string"}, 512),
        ({"type": "string", "x-weir-max-bytes": 3}, 3),
        ({"enum": ["a"]}, 512),
    ):
        *_, field = loaded(with_field(**schema))["t.v1"].fields
        assert (field.kind, field.max_bytes, field.reason) == (Kind.TEXT, most, Reason.INVALID_DATA)


def test_a_text_that_may_be_neither_empty_nor_null_is_required() -> None:
    for type_, is_required in (("string", True), (["string", "null"], False)):
        *_, field = loaded(with_field(type=type_, minLength=1))["t.v1"].fields
        assert field.is_required is is_required


def test_fields_stand_as_deep_as_is_allowed() -> None:
    *_, field = loaded(document({"o": nested(7)}))["t.v1"].fields
    assert field.pointer == "/data/o" + "/in" * 7


def test_an_attribute_of_the_envelope_may_have_a_column() -> None:
    own = document(properties={**of_data(**NEEDED), "traceparent": text("trace"), "source": text("gateway")})
    assert [field.pointer for field in loaded(own)["t.v1"].fields[2:]] == ["/source", "/traceparent"]


def test_a_heartbeat_needs_no_fields_and_may_have_some() -> None:
    own = {"$id": "t.v1", "x-weir-family": "heartbeat"}
    assert loaded(own)["t.v1"].fields == ()
    (field,) = loaded({**own, "properties": of_data(load={"type": "number", COLUMN: "load"})})["t.v1"].fields
    assert field.column == "load"


def test_a_pointer_escapes_what_rfc_6901_does() -> None:
    assert pointer(("data", "a/b~c")) == "/data/a~1b~0c"


def test_reserved_columns_are_those_that_the_validator_and_the_journal_fill() -> None:
    assert set(EventValidator({}).schema.names) <= RESERVED | {DOCUMENT}
    assert " " in DOCUMENT, "no column of a contract has such a name"
    assert set(JOURNAL.names) <= RESERVED | set(COLUMNS)
    assert not RESERVED & set(COLUMNS)


def test_columns_that_a_field_may_fill_have_the_type_of_the_journal() -> None:
    assert {name: JOURNAL.field(name).type for name in COLUMNS} == {name: ARROW[kind] for name, kind in COLUMNS.items()}


def test_a_common_text_attribute_cannot_be_one_that_weir_reads_itself() -> None:
    assert not set(ENVELOPE) & set(ENVELOPE_OTHER)


EVENT = {"specversion": "1.0", "source": "s", "id": "1", "subject": "a", "time": "2026-01-01T00:00:00Z"}
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats()
    | st.sampled_from(
        [
            "string",
            "integer",
            "number",
            "boolean",
            "null",
            "object",
            "double",
            "text_or_number",
            "g",
            "lsn",
            "data",
            "",
            "\ud800",
        ]
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["g", "type", COLUMN, "enum"]), inner),
    max_leaves=6,
)
KEYWORDS = st.sampled_from(
    [
        *(
            "type",
            "title",
            "description",
            "$schema",
            "required",
            "properties",
            "enum",
            "minLength",
            "minimum",
            "maximum",
        ),
        *(
            "format",
            COLUMN,
            "x-weir-max-bytes",
            "x-weir-number",
            "x-weir-reason",
            "x-weir-family",
            "$id",
            "allOf",
            "other",
        ),
    ]
)


@given(
    at_root=st.dictionaries(KEYWORDS, JSON, max_size=3),
    of_field=st.dictionaries(KEYWORDS, JSON, max_size=4),
    base=st.sampled_from([{"type": "string"}, {"type": "number"}, {"type": "integer"}, {"enum": ["a"]}, {}]),
)
def test_any_document_is_refused_or_a_contract_of_which_a_validator_can_be_built(
    at_root: dict[str, Any], of_field: dict[str, Any], base: dict[str, Any]
) -> None:
    own = {**document({"g": {COLUMN: "g", **base, **of_field}}), **at_root}
    try:
        found = contract_of(own, shipped())
    except ContractRefused:
        return
    event = {**EVENT, "type": found.type, "data": {"request_id": "r", "model": "m", "g": 1}}
    validated = EventValidator({found.type: found}).validate(records_of([json.dumps(event).encode()]))
    assert validated.num_rows == 1


def test_fields_are_validated_in_the_order_of_the_contract() -> None:
    """Helm orders the keys of a value anew: an event that is wrong in two ways has the same reason everywhere."""

    def reordered(value: Any) -> Any:
        return {key: reordered(value[key]) for key in sorted(value)} if isinstance(value, dict) else value

    documents = shipped()
    for name, contract in contracts_of([], documents).items():
        assert contracts_of([], {key: reordered(each) for key, each in documents.items()})[name] == contract
    columns = [field.column for field in contracts_of([], documents)["ai.inference.usage.v1"].fields]
    assert columns[:3] == ["request_id", "model", "user_id"]


def test_columns_of_an_outcome_are_always_required() -> None:
    """A request without a name would be in no outcome, or end the driver that makes one of it."""
    optional = {name: {"type": ["string", "null"], COLUMN: name} for name in ("request_id", "model")}
    fields = loaded({**document(), "properties": of_data(**optional)})["t.v1"].fields
    assert {field.column for field in fields if field.is_required} == {"request_id", "model"}


def test_quantities_of_completions_are_never_required() -> None:
    bare = {"type": "integer", COLUMN: "input_tokens"}
    (tokens,) = [f for f in loaded(document({"n": bare}))["t.v1"].fields if f.column == "input_tokens"]
    assert (tokens.minimum, tokens.maximum) == (Decimal(0), Decimal(10**10))


def test_all_contracts_together_have_a_limit() -> None:
    def wide(name: str) -> dict[str, Any]:
        return {**document({f"f{n}": text(f"f{n}") for n in range(150)}), "$id": name}

    assert len(loaded(wide("a"), wide("b"))["b"].fields) == 152
    with pytest.raises(ContractRefused, match="all contracts together have 521 fields; at most 420"):
        loaded(wide("a"), wide("b"), wide("c"))
