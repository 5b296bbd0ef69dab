"""An event is the same event in each form in which Kafka may hold it."""

from __future__ import annotations

import base64
import json
import random
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.ingestion.config import IngestionConfig
from jobs.ingestion.formats import DOCUMENT, documents
from tests.corpus import BAD_DOCUMENTS, GOOD_DOCUMENTS
from tests.corpus.contracts import GPU
from tests.corpus.documents import REMOVED, completion, encoded, packed, request, request_with
from tests.corpus.mutate import mutant
from tests.pipelines.ingestion import records_of

CONFIG = IngestionConfig(contracts=(GPU,))
VALIDATOR = CONFIG.validator()
OF_FORM = ("offset", "value", DOCUMENT)
FRAME = b"\0\xff\0\0\x07"
PLAIN = [
    document.value
    for document in (*GOOD_DOCUMENTS, *BAD_DOCUMENTS)
    if document.value is not None and document.value.lstrip().startswith(b"{") and b"data_base64" not in document.value
]
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def rows(values: list[bytes | None], *, strictly: bool = False) -> pl.DataFrame:
    validate = VALIDATOR.validate_strictly if strictly else VALIDATOR.validate
    return pl.DataFrame(validate(records_of(values)))


def said(values: list[bytes | None], *, strictly: bool = False) -> pl.DataFrame:
    """What the journal has of records, but for their bytes."""
    return rows(values, strictly=strictly).drop(OF_FORM)


@pytest.mark.parametrize("strictly", [False, True])
def test_a_framed_event_is_the_event_without_its_frame(strictly: bool) -> None:
    plain: list[bytes | None] = [*PLAIN]
    framed: list[bytes | None] = [FRAME + document for document in PLAIN]
    expected, found = said(plain, strictly=strictly), said(framed, strictly=strictly)
    # What is broken says, too, that it is framed.
    is_json = ~expected["reason"].is_in(["malformed", "not_utf8", "nul_character"]).fill_null(value=False)
    assert found.filter(is_json).equals(expected.filter(is_json))
    assert found["reason"].equals(expected["reason"])
    assert rows(framed)[DOCUMENT].to_list() == plain


def test_data_in_base64_is_the_data_itself() -> None:
    events = [request(), completion(), request_with(user_id="Zoë 😀"), completion(gpu_seconds=1.5), request(data={})]
    events += [request(data=[1]), request(data=5), request(data="x"), completion(input_tokens=-1)]
    expected = said([*map(encoded, events)])
    assert said([encoded(packed(event)) for event in events]).equals(expected)
    assert said([encoded({"data": None, **packed(event)}) for event in events]).equals(expected)
    assert said([json.dumps(packed(event), indent=1).encode() for event in events], strictly=True).equals(expected)
    assert said([FRAME + encoded(packed(event)) for event in events]).equals(expected)


def test_base64_data_that_is_not_json_is_rejected() -> None:
    wrong: list[dict[str, Any]] = [
        request(data=REMOVED, data_base64="AAEC"),
        request(data=REMOVED, data_base64="e30"),
        request(data=REMOVED, data_base64=5),
        request(data_base64="e30="),
        request(data=REMOVED, data_base64=base64.b64encode(b'{"a":1}{"b":2}').decode()),
        request(data=REMOVED, data_base64=base64.b64encode(b'{"a":NaN}').decode()),
        request(data=REMOVED, data_base64=base64.b64encode(b'1,"id":"another"').decode()),
        {**packed(request()), "datacontenttype": "text/plain"},
        {**packed(request()), "datacontenttype": 7},
    ]
    for strictly in (False, True):
        found = rows([*map(encoded, wrong)], strictly=strictly)
        assert set(found["reason"]) == {"invalid_data"}
        assert found["violation"].str.contains("/data_base64: JSON (RFC 8259) in base64", literal=True).all()
        assert found[DOCUMENT].null_count() == len(wrong)


def test_base64_data_is_validated_like_plain_data() -> None:
    def of(text: str) -> tuple[bytes, bytes]:
        event = request(data=REMOVED, data_base64=base64.b64encode(text.encode()).decode())
        return encoded(event), encoded(request(data="@")).replace(b'"@"', text.encode())

    texts = [r'{"user_id":"\u0000"}', r'{"user_id":"\ud800"}', '{"a":1,"a":2}', "[" * 1_000 + "]" * 1_000]
    reasons = [(rows([packed])["reason"][0], rows([plain])["reason"][0]) for packed, plain in map(of, texts)]
    assert reasons[:2] == [("nul_character", "nul_character"), ("malformed", "malformed")]
    # What is no strict JSON is no JSON in base64.
    assert reasons[2:] == [("invalid_data", "malformed")] * 2


@given(ANY_JSON, st.dictionaries(st.text(max_size=6), ANY_JSON, max_size=3), st.booleans())
def test_packing_and_unpacking_changes_nothing(data: Any, more: dict[str, Any], spaced: bool) -> None:
    rest = {name: value for name, value in more.items() if name not in ("data", "data_base64", "datacontenttype")}
    whole = json.dumps(packed({**rest, "data": data}), indent=2 if spaced else None).encode()
    found = documents(pl.Series([whole, b"\0\0\0\0\0" + whole, b"{}"], dtype=pl.Binary)).to_list()
    assert found[0] == found[1]
    assert found[2] is None
    assert json.loads(found[0]) == {**rest, "data": data, "data_base64": None}


def test_documents_of_any_bytes_never_raise() -> None:
    values = [mutant(31, number).draft.value for number in range(2_000)]
    chance = random.Random(31)
    odd = [FRAME[: chance.randrange(6)] + (value or b"") for value in values]
    odd += [(value or b"").replace(b'"data"', b'"data_base64"') for value in values]
    found = VALIDATOR.validate(records_of([*values, *odd, b'"data_base64"', b'{"data_base64":', b"\0", b"\0{"]))
    assert "unreadable" not in found["reason"].to_pylist()


def test_a_record_larger_than_a_record_may_be_is_not_unpacked() -> None:
    small = IngestionConfig(max_record_bytes=1_024).validator()
    event = encoded(packed(request_with(user_id="u" * 2_000)))
    assert small.validate(records_of([event]))[DOCUMENT].to_pylist() == [None]


def test_a_stored_document_has_the_digest_of_the_received_one() -> None:
    values = [encoded(packed(request())), FRAME + encoded(completion()), encoded(completion())]
    found = rows([*values])
    stored = found.select(pl.coalesce(DOCUMENT, "value")).to_series()
    assert VALIDATOR.digests(stored).to_list() == found["content_digest"].to_list()
    assert VALIDATOR.digests(pl.Series(values, dtype=pl.Binary)).to_list() == found["content_digest"].to_list()
    assert said([*stored]).equals(said([*values]))
