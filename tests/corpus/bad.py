"""At least one document of every kind of wrong, each with the reason it must get."""

from __future__ import annotations

from tests.corpus.documents import REMOVED, BadDocument, completion, encoded, request, request_with
from tests.corpus.good import RECORD_BYTES, ROOM_BYTES, filled

_REQUEST = encoded(request())
_COMPLETION = encoded(completion())


def _with(old: bytes, new: bytes, document: bytes = _REQUEST) -> bytes:
    if document.count(old) != 1:
        raise ValueError(f"{old!r} must stand in the document once")
    return document.replace(old, new)


def _deep(opening: bytes, closing: bytes, levels: int) -> bytes:
    return _with(b'"chat"', opening * levels + b"1" + closing * levels)


_DEEPEST = b'{"a":' * 997 + b"1" + b"}" * 997


def _nested(attribute: str) -> bytes:
    """The deepest value that a member of the envelope may have and still be JSON to us."""
    return encoded(request(**{attribute: "@"})).replace(b'"@"', _DEEPEST)


_MALFORMED: dict[str, bytes | None] = {
    "tombstone": None,
    "empty": b"",
    "white_space_only": b" \n",
    "not_json": b"hello",
    "truncated": _REQUEST[:-1],
    "truncated_in_a_text": _REQUEST[: len(_REQUEST) // 2],
    "two_documents": _REQUEST + _REQUEST,
    "two_documents_on_two_lines": _REQUEST + b"\n" + _REQUEST,
    "two_documents_with_comma": _REQUEST + b"," + _REQUEST,
    "closing_brace_too_many": _REQUEST + b"}",
    "closing_bracket_too_many": _REQUEST + b"]",
    "forged_seal": _REQUEST + b",0]",
    "trailing_text": _REQUEST + b" x",
    "trailing_number": _REQUEST + b" 1",
    "trailing_nul_byte": _REQUEST + b"\x00",
    "array_in_an_array": b"[[" + _REQUEST + b"]]",
    "top_level_empty_array": b"[]",
    "top_level_text": b'"event"',
    "top_level_number": b"17",
    "top_level_null": b"null",
    "byte_order_mark": b"\xef\xbb\xbf" + _REQUEST,
    "utf16": _REQUEST.decode().encode("utf-16-be"),
    "duplicate_key": _with(b'"id":"event-1"', b'"id":"event-1","id":"event-2"'),
    "duplicate_key_same_value": _with(b'"id":"event-1"', b'"id":"event-1","id":"event-1"'),
    "duplicate_key_escaped": _with(b'"id":"event-1"', b'"id":"event-1","\\u0069d":"event-2"'),
    "duplicate_key_in_data": _with(b'"model":"small-2"', b'"model":"small-2","model":"large-2"'),
    "duplicate_unknown_key": _with(b'"region"', b'"x":1,"x":1,"region"'),
    "duplicate_key_deep_inside": _with(b'"region"', b'"x":{"y":[{"z":1,"z":2}]},"region"'),
    "nan": _with(b"812.5", b"NaN", _COMPLETION),
    "infinity": _with(b"812.5", b"Infinity", _COMPLETION),
    "minus_infinity": _with(b"812.5", b"-Infinity", _COMPLETION),
    "leading_zero": _with(b"120", b"0120", _COMPLETION),
    "leading_plus": _with(b"120", b"+120", _COMPLETION),
    "leading_point": _with(b"812.5", b".5", _COMPLETION),
    "trailing_point": _with(b"812.5", b"812.", _COMPLETION),
    "hexadecimal": _with(b"120", b"0x78", _COMPLETION),
    "nested_1000_levels_in_an_unknown_field": _with(b'"region"', b'"x":' + b"[" * 998 + b"]" * 998 + b',"region"'),
    "duplicate_unknown_key_with_an_escape": _with(b'"region"', b'"x":1,"\\u0078":1,"region"'),
    "capital_true": _with(b"false", b"True", _COMPLETION),
    "undefined": _with(b"false", b"undefined", _COMPLETION),
    "single_quotes": _REQUEST.replace(b'"', b"'"),
    "unquoted_key": _with(b'"id":', b"id:"),
    "comment": _with(b'"id":', b'/* the id */ "id":'),
    "line_comment": b"// event\n" + _REQUEST,
    "trailing_comma": _with(b"}}", b",}}"),
    "missing_comma": _with(b'"event-1",', b'"event-1" '),
    "missing_colon": _with(b'"id":', b'"id" '),
    "unescaped_newline": _with(b"user-1", b"user\n1"),
    "unescaped_nul": _with(b"user-1", b"user\x001"),
    "unknown_escape": _with(b"user-1", b"\\x41"),
    "half_an_escape": _with(b"user-1", b"\\u12"),
    "lone_high_surrogate": _with(b"user-1", b"\\ud83d"),
    "lone_low_surrogate": _with(b"user-1", b"\\ude00"),
    "surrogates_the_wrong_way_round": _with(b"user-1", b"\\ude00\\ud83d"),
    "lone_surrogate_in_a_key": _with(b'"region"', b'"\\ud83d"'),
    "arrays_5000_deep": _deep(b"[", b"]", 5_000),
    "objects_5000_deep": _deep(b'{"a":', b"}", 5_000),
    "arrays_open_only": b"[" * 100_000,
    "not_json_as_large_as_the_broker_takes": b"x" * (RECORD_BYTES - ROOM_BYTES),
}

_NOT_UTF8: dict[str, bytes] = {
    "latin1": _with(b"user-1", b"Zo\xeb"),
    "surrogate_in_utf8": _with(b"user-1", b"\xed\xa0\xbd"),
    "overlong_slash": _with(b"user-1", b"\xc0\xaf"),
    "beyond_unicode": _with(b"user-1", b"\xf4\x90\x80\x80"),
    "cut_inside_a_character": _REQUEST[:-2] + b"\xf0\x9f\x98",
    "random_bytes": bytes(range(256)),
    "gzip": b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\x03\x00\x00\x00\x00\x00\x00\x00\x00\x00",
}

_NUL: dict[str, bytes] = {
    "nul_in_user": _with(b"user-1", b"user\\u00001"),
    "nul_in_id": _with(b"event-1", b"event\\u0000"),
    "nul_in_a_key": _with(b'"region"', b'"re\\u0000gion"'),
    "nul_after_backslash": _with(b"user-1", b"\\\\\\u0000"),
    "nul_in_an_unknown_field": encoded(request_with(note=["\x00"])),
}

_ENVELOPE: dict[str, tuple[str, bytes]] = {
    "empty_object": ("invalid_specversion", b"{}"),
    "null_attributes": ("invalid_specversion", encoded(dict.fromkeys(request()))),
    "old_specversion": ("invalid_specversion", encoded(request(specversion="0.3"))),
    "numeric_specversion": ("invalid_specversion", encoded(request(specversion=1.0))),
    "missing_specversion": ("invalid_specversion", encoded(request(specversion=REMOVED))),
    "missing_id": ("invalid_id", encoded(request(id=REMOVED))),
    "null_id": ("invalid_id", encoded(request(id=None))),
    "empty_id": ("invalid_id", encoded(request(id=""))),
    "numeric_id": ("invalid_id", encoded(request(id=17))),
    "object_id": ("invalid_id", encoded(request(id={"a": "b"}))),
    "control_character_in_id": ("invalid_id", encoded(request(id="a\nb"))),
    "id_of_200000_characters": ("invalid_id", encoded(request(id="i" * 200_000))),
    "id_of_513_bytes": ("invalid_id", encoded(request(id="ä" * 256 + "i"))),
    "missing_source": ("invalid_source", encoded(request(source=REMOVED))),
    "empty_source": ("invalid_source", encoded(request(source=""))),
    "array_source": ("invalid_source", encoded(request(source=["gateway/1"]))),
    "delete_character_in_source": ("invalid_source", encoded(request(source="gateway\x7f"))),
    "missing_type": ("invalid_type", encoded(request(type=REMOVED))),
    "boolean_type": ("invalid_type", encoded(request(type=True))),
    "missing_subject": ("missing_subject", encoded(request(subject=REMOVED))),
    "null_subject": ("missing_subject", encoded(request(subject=None))),
    "unknown_type_without_subject": ("missing_subject", encoded(request(type="x.y", subject=REMOVED))),
    "empty_subject": ("invalid_subject", encoded(request(subject=""))),
    "numeric_subject": ("invalid_subject", encoded(request(subject=42))),
    "numeric_subject_of_a_heartbeat": ("invalid_subject", encoded(request(type="source.heartbeat.v1", subject=42))),
    "boolean_sequence": ("invalid_sequence", encoded(request(sequence=True))),
    "negative_sequence": ("invalid_sequence", encoded(request(sequence=-1))),
    "fractional_sequence": ("invalid_sequence", encoded(request(sequence=1.5))),
    "sequence_with_newline": ("invalid_sequence", encoded(request(sequence="12\n"))),
    "sequence_of_30_digits": ("invalid_sequence", encoded(request(sequence=10**30))),
    "sequence_of_19_digits": ("invalid_sequence", encoded(request(sequence=10**18))),
    "sequence_at_the_end_of_64_bits": ("invalid_sequence", encoded(request(sequence=2**63 - 1))),
    "nested_997_levels_in_sequence": ("invalid_sequence", _nested("sequence")),
    "nested_997_levels_in_sourceepoch": ("invalid_sequence", _nested("sourceepoch")),
    "nested_997_levels_in_senttime": ("invalid_senttime", _nested("senttime")),
    "nested_997_levels_in_subject": ("invalid_subject", _nested("subject")),
    "object_sourceepoch": ("invalid_sequence", encoded(request(sourceepoch={}))),
}

_TIMES: dict[str, object] = {
    "missing_time": REMOVED,
    "null_time": None,
    "empty_time": "",
    "time_without_offset": "2026-07-01T11:59:59",
    "time_with_space": "2026-07-01 11:59:59Z",
    "date_only": "2026-07-01",
    "time_of_the_hour_25": "2026-07-01T25:00:00Z",
    "time_of_the_hour_24": "2026-07-01T24:00:00Z",
    "february_30": "2026-02-30T11:59:59Z",
    "leap_second": "2026-06-30T23:59:60Z",
    "time_in_a_named_zone": "2026-07-01T11:59:59 Europe/Berlin",
    "offset_without_colon": "2026-07-01T11:59:59+0530",
    "offset_of_a_day": "2026-07-01T11:59:59+24:00",
    "epoch_milliseconds": 1_782_907_199_250,
    "epoch_milliseconds_as_text": "1782907199250",
    "year_58856": "58856-07-01T11:59:59Z",
    "signed_year_58856": "+58856-07-01T11:59:59Z",
    "time_with_newline": "2026-07-01T11:59:59Z\n",
    "rfc_1123_time": "Wed, 01 Jul 2026 11:59:59 GMT",
    "arabic_digits": "٢٠٢٦-07-01T11:59:59Z",
}

_SENT_TIMES: dict[str, object] = {
    "numeric_senttime": 1_782_907_199,
    "empty_senttime": "",
    "senttime_without_offset": "2026-07-01T11:59:59",
}

_OUTSIDE: dict[str, tuple[str, object]] = {
    "older_than_35_days": ("too_old", "2026-05-25T11:59:59Z"),
    "year_0000": ("too_old", "0000-01-01T00:00:00Z"),
    "year_1582": ("too_old", "1582-10-10T00:00:00Z"),
    "in_two_days": ("future", "2026-07-03T12:00:00Z"),
    "year_2099": ("future", "2099-01-01T00:00:00Z"),
    "year_9999": ("future", "9999-12-31T23:59:59.999999Z"),
}

_BIG = 10**10 + 1
_DATA: dict[str, tuple[str, bytes]] = {
    "missing_data": ("invalid_data", encoded(request(data=REMOVED))),
    "null_data": ("invalid_data", encoded(request(data=None))),
    "text_data": ("invalid_data", encoded(request(data='{"request_id":"r"}'))),
    "array_data": ("invalid_data", encoded(request(data=[{"request_id": "r"}]))),
    "numeric_data": ("invalid_data", encoded(request(data=5))),
    "empty_base64_data": ("invalid_request_id", encoded(request(data=REMOVED, data_base64="e30="))),
    "base64_data_of_bytes": ("invalid_data", encoded(request(data=REMOVED, data_base64="AAEC"))),
    "broken_base64_data": ("invalid_data", encoded(request(data=REMOVED, data_base64="e3 0="))),
    "numeric_base64_data": ("invalid_data", encoded(request(data=REMOVED, data_base64=5))),
    "base64_data_of_no_json": (
        "invalid_data",
        encoded(request(data=REMOVED, data_base64="e30=", datacontenttype="text/plain")),
    ),
    "both_kinds_of_data": ("invalid_data", encoded(request(data_base64="e30="))),
    "numeric_user": ("invalid_data", encoded(request_with(user_id=5))),
    "object_region": ("invalid_data", encoded(request_with(region={"name": "eu"}))),
    "boolean_route": ("invalid_data", encoded(request_with(route=False, extra=1))),
    "user_of_100000_characters": ("invalid_data", encoded(request_with(user_id="u" * 100_000))),
    "missing_request_id": ("invalid_request_id", encoded(request_with(request_id=REMOVED))),
    "null_request_id": ("invalid_request_id", encoded(completion(request_id=None))),
    "empty_request_id": ("invalid_request_id", encoded(completion(request_id=""))),
    "numeric_request_id": ("invalid_request_id", encoded(request_with(request_id=7))),
    "empty_data": ("invalid_request_id", encoded(request(data={}))),
    "missing_model": ("invalid_model", encoded(request_with(model=REMOVED))),
    "numeric_model": ("invalid_model", encoded(request_with(model=4))),
    "missing_status": ("invalid_status", encoded(completion(status=REMOVED))),
    "unknown_status": ("invalid_status", encoded(completion(status="done"))),
    "capital_status": ("invalid_status", encoded(completion(status="Completed"))),
    "numeric_status": ("invalid_status", encoded(completion(status=200))),
    "usage_without_status": ("invalid_status", encoded(request(type="ai.inference.usage.v1"))),
    "unknown_usage_source": ("invalid_usage_source", encoded(completion(usage_source="guess"))),
    "numeric_usage_source": ("invalid_usage_source", encoded(completion(usage_source=1))),
    "negative_tokens": ("invalid_tokens", encoded(completion(input_tokens=-1))),
    "fractional_tokens": ("invalid_tokens", encoded(completion(output_tokens=1.5))),
    "tokens_with_fraction_zero": ("invalid_tokens", encoded(completion(output_tokens=5.0))),
    "tokens_with_exponent": ("invalid_tokens", _with(b"120", b"1e3", _COMPLETION)),
    "too_many_tokens": ("invalid_tokens", encoded(completion(cached_tokens=_BIG))),
    "tokens_beyond_64_bits": ("invalid_tokens", encoded(completion(input_tokens=2**64))),
    "number_of_2000_digits": ("invalid_tokens", _with(b"120", b"1" * 2_000, _COMPLETION)),
    "tokens_of_40_digits": ("invalid_tokens", encoded(completion(input_tokens=10**40))),
    "tokens_1e400": ("invalid_tokens", _with(b"120", b"1e400", _COMPLETION)),
    "tokens_as_text": ("invalid_tokens", encoded(completion(input_tokens="120"))),
    "tokens_as_empty_text": ("invalid_tokens", encoded(completion(input_tokens=""))),
    "boolean_tokens": ("invalid_tokens", encoded(completion(input_tokens=True))),
    "array_tokens": ("invalid_tokens", encoded(completion(input_tokens=[120]))),
    "nested_996_levels_in_tokens": ("invalid_tokens", _with(b"120", _DEEPEST[5:-1], _COMPLETION)),
    "nested_996_levels_in_cached": ("invalid_cached", _with(b"false", _DEEPEST[5:-1], _COMPLETION)),
    "nested_996_levels_in_latency": ("invalid_latency", _with(b"812.5", _DEEPEST[5:-1], _COMPLETION)),
    "nested_996_levels_in_user": ("invalid_data", encoded(request_with(user_id="@")).replace(b'"@"', _DEEPEST[5:-1])),
    "cached_as_text": ("invalid_cached", encoded(completion(cached="false"))),
    "cached_as_number": ("invalid_cached", encoded(completion(cached=0))),
    "latency_as_text": ("invalid_latency", encoded(completion(latency_ms="12"))),
    "latency_nan_as_text": ("invalid_latency", encoded(completion(latency_ms="NaN"))),
    "negative_latency": ("invalid_latency", encoded(completion(latency_ms=-0.5))),
    "latency_of_400_digits": ("invalid_latency", _with(b"812.5", b"9" * 400, _COMPLETION)),
    "more_cached_than_input": ("inconsistent_quantities", encoded(completion(input_tokens=120, cached_tokens=121))),
    "latency_1e400": ("invalid_latency", _with(b"812.5", b"1e400", _COMPLETION)),
}

BAD_DOCUMENTS = [
    *[BadDocument(name, value, "malformed") for name, value in _MALFORMED.items()],
    *[BadDocument(name, value, "not_utf8") for name, value in _NOT_UTF8.items()],
    *[BadDocument(name, value, "nul_character") for name, value in _NUL.items()],
    *[BadDocument(name, value, reason) for name, (reason, value) in {**_ENVELOPE, **_DATA}.items()],
    *[BadDocument(name, encoded(request(time=time)), "invalid_time") for name, time in _TIMES.items()],
    *[BadDocument(name, encoded(request(senttime=time)), "invalid_senttime") for name, time in _SENT_TIMES.items()],
    *[BadDocument(name, encoded(request(time=time)), reason) for name, (reason, time) in _OUTSIDE.items()],
]

TOO_LARGE = filled(RECORD_BYTES + 1)
"""A valid event that the broker refuses: it never becomes a record."""
