"""One event with an array of calls: what its contract says, and what the validator makes of each call."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.event_hints import missing_quantities, unread_fields
from jobs.audit.recompute.late_contracts import Later, LaterContracts
from jobs.ingestion.config import IngestionConfig
from jobs.ingestion.documents import validated as validated_documents
from jobs.ingestion.elements import rejected_whole, split
from jobs.ingestion.stored_contracts import stored_contracts
from jobs.ingestion.validator import EventValidator
from metering.contracts.compatibility import narrowed
from metering.contracts.field_reader import ContractRefused
from metering.contracts.schema import contract_of, contracts_of
from metering.contracts.shipped import shipped
from metering.contracts.unnest import MAX_ELEMENTS, MAX_UNNESTED_BYTES
from metering.instants import rfc3339
from metering.limits import MAX_NAME_BYTES
from tests.corpus import RECEIVED_AT
from tests.pipelines.ingestion import records_of, validated

TRACE = "agent.trace.v1"
COUNT = {"type": "integer", "minimum": 0}
FIELDS: dict[str, Any] = {
    "request_id": {"type": "string", "x-weir-column": "request_id"},
    "model": {"type": "string", "x-weir-column": "model"},
    "status": {"enum": ["completed", "cancelled", "error", None], "x-weir-column": "status"},
    "input_tokens": {**COUNT, "x-weir-column": "input_tokens"},
    "cached_tokens": {**COUNT, "x-weir-column": "cached_tokens"},
    "output_tokens": {**COUNT, "x-weir-column": "output_tokens"},
}
OF_CALL = ("request_id", "model", "status", "input_tokens", "cached_tokens", "output_tokens", "quantity_includes")
Row = dict[str, Any]


def contract(unnest: Any = "/data/calls", kind: str = TRACE, family: str = "both", **fields: Any) -> Row:
    data = {"required": ["request_id", "model"], "properties": {**FIELDS, **fields}}
    included = {"x-weir-includes": {"input_tokens": ["cached_tokens"]}}
    own = {"$id": kind, "x-weir-family": family, **included, "properties": {"data": data}}
    return own if unnest is None else {**own, "x-weir-unnest": unnest}


def config(*contracts: Row) -> IngestionConfig:
    return IngestionConfig.model_validate({"contracts": contracts or (contract(), contract(None, "call.v1"))})


CONFIG = config()
VALIDATOR = CONFIG.validator()


def event(calls: Any, name: str = "t-1", kind: str = TRACE, **data: Any) -> bytes:
    envelope = {"specversion": "1.0", "type": kind, "source": "agent/1", "id": name, "subject": "acme"}
    said = {"request_id": "trace-1", "calls": calls, **data}
    if calls is None:
        del said["calls"]
    return json.dumps({**envelope, "time": rfc3339(RECEIVED_AT), "data": said}).encode()


def call(number: int = 1, **data: Any) -> Row:
    return {"model": f"m{number}", "input_tokens": number, "output_tokens": 10 * number, **data}


TWELVE = [call(number) for number in range(1, 13)]


def test_each_element_is_a_row_with_its_number_and_an_identity_and_request_id_with_it() -> None:
    rows = validated([event(TWELVE)], CONFIG).to_dicts()
    assert [row["reason"] for row in rows] == [None] * 12
    assert [row["element"] for row in rows] == list(range(1, 13))
    assert [row["request_id"] for row in rows] == [f"trace-1/{number}" for number in range(1, 13)]
    assert len({row["identity"] for row in rows}) == 12
    assert {row["offset"] for row in rows} == {0}
    assert len({row["content_digest"] for row in rows}) == 1, "all say that their event is the same, or another"
    assert [(row["model"], row["input_tokens"]) for row in rows] == [(f"m{n}", n) for n in range(1, 13)]
    assert [row["value"] is None for row in rows] == [False] + [True] * 11, "what was received is kept once"


def test_the_first_element_has_the_identity_that_the_event_had_before_it_was_unnested() -> None:
    before = config(contract(None))
    [whole] = validated([event(TWELVE, model="m")], before).to_dicts()
    first, second, *_ = validated([event(TWELVE)], CONFIG).to_dicts()
    assert first["identity"] == whole["identity"] != second["identity"]


def test_an_event_without_elements_by_contract_is_row_zero_and_without_such_a_contract_there_is_no_column() -> None:
    [row] = validated([event(None, kind="call.v1", model="m")], CONFIG).to_dicts()
    assert (row["reason"], row["element"], row["request_id"]) == (None, 0, "trace-1")
    without = config(contract(None)).model_copy(update={"batches": False})
    assert "element" not in without.validator().schema.names


def test_members_of_an_element_stand_in_data_and_replace_those_around_it() -> None:
    calls = [{"input_tokens": 1}, {"model": "own", "status": None}, {"status": "error", "model": None}]
    rows = validated([event(calls, model="around", status="cancelled", output_tokens=7)], CONFIG).to_dicts()
    assert [row["model"] for row in rows] == ["around", "own", "around"], "null says nothing"
    assert [row["status"] for row in rows] == ["cancelled", "cancelled", "error"]
    assert [(row["input_tokens"], row["output_tokens"]) for row in rows] == [(1, 7), (None, 7), (None, 7)]


def test_an_element_keeps_a_request_id_of_its_own() -> None:
    rows = validated([event([call(), call(request_id="call-7")])], CONFIG).to_dicts()
    assert [row["request_id"] for row in rows] == ["trace-1/1", "call-7"]


def test_an_array_may_stand_deeper_in_data() -> None:
    deep = config(contract("/data/trace/the~1calls"))
    event_of = json.loads(event(None, model="m"))
    event_of["data"]["trace"] = {"the/calls": [{"input_tokens": 5}, {}], "id": "x"}
    rows = validated([json.dumps(event_of).encode()], deep).to_dicts()
    assert [row["input_tokens"] for row in rows] == [5, None]


@pytest.mark.parametrize(
    ("calls", "says"),
    [
        (None, "required"),
        ([], f"1 to {MAX_ELEMENTS} elements; it has 0"),
        ([{}] * (MAX_ELEMENTS + 1), f"1 to {MAX_ELEMENTS} elements; it has {MAX_ELEMENTS + 1}"),
        ({"a": 1}, 'type is array; it is {"a": 1}'),
        ("x", 'type is array; it is "x"'),
        (3, "type is array; it is 3"),
        ([call(), 3], "type of each element is object; element 2 (/data/calls/1) is 3"),
        ([call(), [1]], "type of each element is object; element 2 (/data/calls/1) is [1]"),
        ([None], "type of each element is object; element 1 (/data/calls/0) is null"),
    ],
    ids=["missing", "empty", "too many", "an object", "a text", "a number", "a number in it", "an array in it", "null"],
)
def test_without_an_array_of_objects_the_event_is_one_dead_letter(calls: Any, says: str) -> None:
    for strictly in (False, True):
        [row] = validated([event(calls, model="m")], CONFIG, strictly=strictly).to_dicts()
        assert (row["reason"], row["element"]) == ("invalid_data", 0)
        assert row["violation"] == f"{TRACE} /data/calls: {says}"
        assert row["value"] == event(calls, model="m")
        assert row["content_digest"] is None


def test_a_thousand_elements_are_taken() -> None:
    rows = validated([event([{}] * MAX_ELEMENTS, model="m")], CONFIG)
    assert rows["element"].to_list() == list(range(1, MAX_ELEMENTS + 1))
    assert rows["reason"].null_count() == MAX_ELEMENTS


NOTES: Row = {f"note_{number}": {"type": "string", "x-weir-column": f"note_{number}"} for number in range(9)}


@pytest.mark.parametrize("beyond", [0, 1])
def test_what_an_event_becomes_has_a_limit(beyond: int) -> None:
    """What surrounds the array is in each element: a record of 1 MiB would become 1 GiB."""
    noted = config(contract(**NOTES))
    around = {"request_id": "r" * 12, "model": "é", **dict.fromkeys(NOTES, "x" * 464), "unread": "x" * 9_000}
    each = 12 + len("é".encode()) + 9 * 464
    left = MAX_UNNESTED_BYTES - MAX_ELEMENTS * each
    calls = [{"status": "completed", "unread": "x"}] * 2 + [{}] * (MAX_ELEMENTS - 2)
    texts = left - 2 * len("completed") + beyond
    notes = {name: "y" * min(512, max(0, texts - 512 * n)) for n, name in enumerate(NOTES)}
    found = validated([event([*calls[:-1], notes], **around)], noted)
    if not beyond:
        assert found["reason"].to_list() == [None] * MAX_ELEMENTS
        return
    [row] = found.to_dicts()
    assert (row["reason"], row["element"]) == ("invalid_data", 0)
    says = f"at most {MAX_UNNESTED_BYTES} bytes of elements with what surrounds the array in each; it has "
    assert row["violation"] == f"{TRACE} /data/calls: {says}{MAX_UNNESTED_BYTES + 1}"


def test_texts_of_any_kind_count_toward_the_size_limit() -> None:
    """The same is true of what is no text where one should be: each element would say what it is."""
    for value in (["x" * 9_000], {"a": {"b": "x" * 9_000}}, "x" * 9_000):
        [row] = validated([event([{}] * MAX_ELEMENTS, model=value)], CONFIG).to_dicts()
        assert row["violation"].startswith(f"{TRACE} /data/calls: at most {MAX_UNNESTED_BYTES} bytes")


def test_elements_validated_in_blocks_give_the_same_rows_as_all_at_once() -> None:
    values = [event([call()] * 900, f"t-{n}") for n in range(120)] + [event([3], "bad"), b"{", b"\xff"]
    values += [event(None, kind="call.v1", model="m")] * 3
    tables = list(VALIDATOR.validated_blocks(records_of(values)))
    assert [len(table) for table in tables] == [900 * 55, 900 * 55, 900 * 10 + 6]
    assert pa.concat_tables(tables).equals(VALIDATOR.validate(records_of(values)))
    assert pl.DataFrame(pa.concat_tables(tables))["offset"].rle_id().max() == len(values) - 1
    [nothing] = VALIDATOR.validated_blocks(records_of([]))
    assert len(nothing) == 0


IN_A_PROCESS = """
import resource
from tests.rules.test_unnest import CONFIG, MAX_ELEMENTS, event
from tests.pipelines.ingestion import validated

def peak_mib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

validated([event([{}], model="m")], CONFIG)
before = peak_mib()
for values in (
    [event([{"input_tokens": 1}] * MAX_ELEMENTS, model="m", operation="x" * 900_000)],
    [event([{}] * MAX_ELEMENTS, model="m" * 900_000)],
    [event([{}] * MAX_ELEMENTS, f"t-{n}", model="m") for n in range(40)],
):
    validated(values, CONFIG)
print(peak_mib() - before)
"""


def test_a_record_takes_memory_for_its_rows_and_not_for_its_bytes_in_each() -> None:
    """One record of 900 kB took 1.3 to 3.4 GiB, and 40 of 4 kB with a thousand elements each 300 MiB."""
    done = subprocess.run([sys.executable, "-c", IN_A_PROCESS], check=True, capture_output=True, text=True)
    assert float(done.stdout) < 150


def test_one_bad_element_rejects_the_event_whole_and_says_which() -> None:
    calls = [call(1), call(2), call(3, input_tokens=-4), call(4, output_tokens="x")]
    good, bad, after = validated([event([call()]), event(calls, "t-2"), event([call()], "t-3")], CONFIG).to_dicts()
    assert (good["reason"], after["reason"]) == (None, None)
    assert (bad["reason"], bad["element"], bad["offset"]) == ("invalid_data", 0, 1)
    says = f"{TRACE} /data/input_tokens: at least 0; it is -4; in element 3 (/data/calls/2)"
    assert bad["violation"] == says
    assert bad["value"] == event(calls, "t-2")
    assert (bad["model"], bad["request_id"]) == (None, "trace-1"), "what surrounds the array is said"


def test_parts_that_are_more_than_the_whole_reject_the_event() -> None:
    [row] = validated([event([call(), call(2, cached_tokens=3)])], CONFIG).to_dicts()
    assert row["reason"] == "inconsistent_quantities"
    assert row["violation"].endswith("; in element 2 (/data/calls/1)")


def test_a_bad_envelope_comes_before_anything_about_elements() -> None:
    nameless = json.loads(event([3]))
    del nameless["id"]
    [row] = validated([json.dumps(nameless).encode()], CONFIG).to_dicts()
    assert row["reason"] == "invalid_id"


def test_data_that_is_no_object_is_rejected_as_ever() -> None:
    broken = {**json.loads(event([])), "data": [1]}
    [row] = validated([json.dumps(broken).encode()], CONFIG).to_dicts()
    assert (row["reason"], row["violation"]) == (
        "invalid_data",
        f"{TRACE} /data: an object is required; it is the array [1]",
    )


def test_a_request_id_must_have_room_for_the_number_of_its_element() -> None:
    calls = [call(number) for number in range(1, 11)]
    room = MAX_NAME_BYTES - len("/10")
    fitting, long = event(calls, request_id="r" * room), event(calls, request_id="r" * (room + 1))
    assert validated([fitting], CONFIG)["reason"].to_list() == [None] * 10
    [row] = validated([long], CONFIG).to_dicts()
    assert row["reason"] == "invalid_data"
    assert f"at most {MAX_NAME_BYTES} bytes with the number of an element" in row["violation"]
    assert row["violation"].endswith("in element 10 (/data/calls/9)")
    own = [call(number, request_id="r" * MAX_NAME_BYTES) for number in range(1, 3)]
    assert validated([event(own)], CONFIG)["reason"].to_list() == [None] * 2


def test_quantities_of_elements_are_outcomes_of_their_own() -> None:
    data = {"required": ["model"], "properties": {name: FIELDS[name] for name in ("model", "input_tokens")}}
    own = {"$id": TRACE, "x-weir-family": "quantity", "x-weir-unnest": "/data/calls", "properties": {"data": data}}
    rows = validated([event([call(1), call(2)])], config(own)).to_dicts()
    assert [row["request_id"] for row in rows] == [f"quantity:{row['identity'].hex()}" for row in rows]
    assert len({row["identity"] for row in rows}) == 2


def digest(calls: Sequence[Row], name: str = "t-1", **data: Any) -> int:
    [found] = set(validated([event(calls, name, **data)], CONFIG)["content_digest"])
    assert isinstance(found, int)
    return found


def test_the_content_of_an_event_is_all_its_elements_in_their_order() -> None:
    known = digest(TWELVE)
    assert digest(TWELVE) == known
    assert digest([{**each, "note": "not read"} for each in TWELVE], note=1) == known
    assert digest(TWELVE[::-1]) != known
    assert digest(TWELVE[:-1]) != known
    assert digest([*TWELVE, TWELVE[0]]) != known
    assert digest([*TWELVE[:-1], {**TWELVE[-1], "output_tokens": 0}]) != known
    assert digest([call(), call()]) != digest([call()])


own_ids = st.lists(st.sampled_from([None, "trace-1", "trace-1/1", "trace-1/2", "own"]), min_size=1, max_size=3)


@pytest.mark.long
@given(own_ids, own_ids, st.booleans())
def test_events_of_other_requests_are_no_duplicates_of_each_other(
    first: list[str | None], again: list[str | None], is_read_again: bool
) -> None:
    """Also where an element repeats the request id around it, which has no number then."""
    values = [event([call(request_id=each) for each in ids]) for ids in (first, again)]
    rows = [validated([value], CONFIG) for value in values]
    requests = [each["request_id"].to_list() for each in rows]
    digests = [each["content_digest"][0] for each in rows]
    if is_read_again:
        digests = VALIDATOR.digests(pl.Series(values, dtype=pl.Binary)).to_list()
    assert first == again or digests[0] != digests[1]
    assert requests[0] == requests[1] or digests[0] != digests[1]


def test_events_read_again_have_the_digest_of_the_whole_event() -> None:
    values = [event(TWELVE), event(None, kind="call.v1", model="m"), event([], "t-2"), event(TWELVE[::-1])]
    single = validated([values[1]], CONFIG)["content_digest"][0]
    found = CONFIG.validator().digests(pl.Series(values, dtype=pl.Binary)).to_list()
    assert found == [digest(TWELVE), single, None, digest(TWELVE[::-1])]


def test_each_document_gets_one_verdict() -> None:
    values = [event(TWELVE), event([]), event(None, kind="call.v1", model="m")]
    found = validated_documents(values, CONFIG.validator(), 1 << 20)
    assert found["reason"].to_list() == [None, "invalid_data", None]


calls_of = st.fixed_dictionaries(
    {},
    optional={
        "model": st.sampled_from(["small-1", "large-1", None]),
        "status": st.sampled_from(["completed", "error", "cancelled", None, "odd"]),
        "input_tokens": st.integers(-1, 50) | st.none(),
        "cached_tokens": st.integers(0, 5),
        "output_tokens": st.integers(0, 50) | st.just("7"),
        "request_id": st.sampled_from(["own-1", "own-2"]),
        "unread": st.integers(),
    },
)
around = st.fixed_dictionaries(
    {"request_id": st.sampled_from(["trace-1", "trace-é"])},
    optional={"model": st.just("around"), "input_tokens": st.integers(0, 9), "status": st.just("error")},
)


@given(st.lists(st.tuples(around, st.lists(calls_of, min_size=1, max_size=4)), min_size=1, max_size=3))
def test_rows_of_an_event_are_those_of_its_calls_sent_one_by_one(traces: list[tuple[Row, list[Row]]]) -> None:
    events = [event(calls, f"t-{n}", **data) for n, (data, calls) in enumerate(traces)]
    places = [(offset, n) for offset, (_, calls) in enumerate(traces) for n in range(1, len(calls) + 1)]
    singles = [alone(traces[offset][0], traces[offset][1][n - 1], n) for offset, n in places]
    single = pl.DataFrame(VALIDATOR.validate(records_of(singles))).with_columns(
        trace=pl.Series([at for at, _ in places])
    )
    for validator in (VALIDATOR.validate, VALIDATOR.validate_strictly):
        found = pl.DataFrame(validator(records_of(events)))
        for offset in range(len(traces)):
            rows, expected = found.filter(offset=offset), single.filter(trace=offset)
            if expected["reason"].null_count() == len(expected):
                assert rows.select(OF_CALL).equals(expected.select(OF_CALL))
                continue
            [broken] = rows.to_dicts()
            first = expected.filter(pl.col("reason").is_not_null()).row(0, named=True)
            assert (broken["reason"], broken["element"]) == (first["reason"], 0)
            assert broken["violation"].startswith(first["violation"].replace("call.v1", TRACE))


def alone(data: Row, each: Row, number: int) -> bytes:
    """A call with what surrounds it, as an event of its own."""
    said = {name: value for name, value in each.items() if value is not None}
    request_id = said.get("request_id", f"{data['request_id']}/{number}")
    return event(None, f"c-{number}", "call.v1", **{**data, **said, "request_id": request_id})


@pytest.mark.parametrize(
    ("unnest", "family", "says"),
    [
        (3, "both", "is a JSON pointer, such as /data/calls; it is 3"),
        ("calls", "both", "the JSON pointer of an array in data"),
        ("/data", "both", "the JSON pointer of an array in data"),
        ("/other/calls", "both", "the JSON pointer of an array in data"),
        ("/data/", "both", "the JSON pointer of an array in data"),
        ("/data/~2", "both", "is a JSON pointer, such as"),
        ("/data/model", "both", "so nothing describes /data/model"),
        ("/data/model/calls", "both", "so nothing describes /data/model"),
        ("/data/" + "/".join("abcdefgh"), "both", "the JSON pointer of an array in data"),
    ],
)
def test_a_contract_names_an_array_in_data(unnest: Any, family: str, says: str) -> None:
    with pytest.raises(ContractRefused, match=says):
        contract_of(contract(unnest, family=family), shipped())


def test_heartbeats_and_reversals_have_no_elements() -> None:
    heartbeat = {"$id": "beat", "x-weir-family": "heartbeat", "x-weir-unnest": "/data/calls"}
    reason = {"type": "string", "x-weir-column": "reversal_reason"}
    for own in (heartbeat, contract(family="reversal", reason=reason)):
        with pytest.raises(
            ContractRefused, match="x-weir-unnest is of the families request, completion, both, quantity"
        ):
            contract_of(own, shipped())


def test_contracts_of_one_type_agree_on_the_array() -> None:
    other = contract(None, "call.v1", calls={"type": "integer", "x-weir-column": "calls"})
    with pytest.raises(ContractRefused, match=r"/data/calls is .* in contract"):
        contracts_of([contract(), other], shipped())


def test_a_column_that_is_called_as_that_of_elements_stays_until_a_contract_unnests() -> None:
    """An upgraded installation may have one of its own."""
    own = contract(None, "call.v1", place={"type": "integer", "x-weir-column": "element"})
    values = [event(None, f"e{place}", "call.v1", model="m", place=place) for place in (1, 2, 0)]
    found = validated(values, config(own))
    assert found["element"].to_list() == [1, 2, 0]
    firsts, further = split(found, [field.name for field in config(own).validator().fields])
    assert (len(firsts), len(further)) == (3, 0)
    assert rejected_whole(firsts, ["element"])["element"].to_list() == [1, 2, 0]
    with pytest.raises(ContractRefused, match="at /data/place: element is a column that Weir fills itself"):
        contracts_of([own, contract()], shipped())


def test_a_contract_that_begins_or_ceases_to_unnest_takes_less_than_before() -> None:
    whole, several = (contract_of(each, shipped()) for each in (contract(None), contract()))
    assert narrowed(whole, several) == ["its x-weir-unnest is /data/calls, and was nothing"]
    assert narrowed(several, whole) == ["its x-weir-unnest is nothing, and was /data/calls"]
    assert narrowed(several, several) == []


def test_an_earlier_audit_cannot_misread_a_contract_that_unnests() -> None:
    """It would bill what came once more in elements whole, too. The journal says it in a word that stops it."""
    documents = CONFIG.deciding["contracts"]
    assert documents[TRACE]["x-weir-unnest"] == "/data/calls"
    known = stored_contracts(CONFIG.deciding, {name: name for name in CONFIG.deciding["max_per_event"]})[TRACE]
    assert known is not None
    assert known.unnest == ("data", "calls")


def test_one_contract_may_build_on_another_and_unnest() -> None:
    own = {"$id": TRACE, "x-weir-unnest": "/data/calls", "allOf": [{"$ref": "weir:ai.inference.usage.v1"}]}
    validator = EventValidator(contracts_of([own], shipped()))
    rows = pl.DataFrame(validator.validate(records_of([event([call(status="completed")] * 2)])))
    assert rows["reason"].to_list() == [None] * 2
    assert deepcopy(own) == own


def test_a_contract_that_unnests_applies_to_no_earlier_or_later_row() -> None:
    """Whoever had sent the event once more would be billed for both."""
    several, whole = (contract_of(contract(unnest), shipped()) for unnest in ("/data/calls", None))
    place = {"topic": "events", "partition": 0, "key": None, "type": TRACE, "received_at": RECEIVED_AT}
    said = [
        {**place, "lsn": lsn, "offset": lsn, "account": "acme", "value": event(TWELVE, f"t-{lsn}", model="m")}
        for lsn in (1, 15, 25)
    ]
    kinds = {"family": pl.String, "request_id": pl.String, "key": pl.Binary}
    rows = pl.DataFrame([{**row, "family": None, "request_id": None} for row in said], schema_overrides=kinds)

    def taken(*later: Later) -> list[int]:
        return LaterContracts(later).takes(rows, ("lsn", "family", "request_id"))["lsn"].sort().to_list()

    assert taken(Later(20, {TRACE: whole})) == [1, 15]
    assert taken(Later(20, {TRACE: several})) == []
    assert taken(Later(20, {TRACE: several}), Later(30, {TRACE: whole})) == [25]
    assert taken(Later(10, {TRACE: whole}), Later(20, {TRACE: several}), Later(30, {TRACE: whole})) == [1, 25]


def test_hints_examine_each_element() -> None:
    several = contract_of(contract(), shipped())
    calls = [call(1), {"model": "m", "odd": {"a": 1}}, {"model": "m", "status": "error"}, {"model": "m"}]
    assert unread_fields(event(calls, note=1), several) == "/data/note, /data/calls/1/odd"
    assert unread_fields(event([call()]), several) is None
    deep = contract_of(contract("/data/trace/calls"), shipped())
    within = {"calls": [{"input_tokens": 5, "trace": 1}], "note": 1}
    assert unread_fields(event(None, model="m", trace=within), deep) == "/data/trace/note, /data/trace/calls/0/trace"
    assert unread_fields(event(None, model="m", trace={"calls": [{"input_tokens": 5}]}), deep) is None
    says = missing_quantities(event(calls), several)
    assert says is not None
    assert says.startswith("element 2 (/data/calls/1): no token field was found")
    assert missing_quantities(event([call(), call()]), several) is None
    assert missing_quantities(event([{"model": "m"}], output_tokens=1), several) is None, "it surrounds the array"
