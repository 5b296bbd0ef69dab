"""One change each of a record's bytes, and of the Kafka record around them."""

from __future__ import annotations

import json
import random

from tests.corpus.drafts import Draft, Mutation

MAX_BYTES = 16_384
"""`max_record_bytes` where these are validated."""


def _flipped(chance: random.Random, draft: Draft) -> None:
    value = bytearray(draft.value or b" ")
    value[chance.randrange(len(value))] ^= 1 << chance.randrange(8)
    draft.value = bytes(value)


def _cut(chance: random.Random, draft: Draft) -> None:
    draft.value = (draft.value or b"")[: chance.randrange(len(draft.value or b" "))]


def _bytes_missing(chance: random.Random, draft: Draft) -> None:
    value = draft.value or b" "
    start = chance.randrange(len(value))
    draft.value = value[:start] + value[start + chance.randint(1, 8) :]


def _bytes_twice(chance: random.Random, draft: Draft) -> None:
    value = draft.value or b" "
    start = chance.randrange(len(value))
    end = start + chance.randint(1, 64)
    draft.value = value[:end] + value[start:]


INSERTED = [
    *(b"\x00", b"\xff", b"\xc0\xaf", b"\xed\xa0\xbd", b"\xf4\x90\x80\x80", b"\xe2\x82", b"\xef\xbb\xbf", b"\x1b"),
    *(
        b"\n",
        b"\\",
        b'"',
        b"\\u0000",
        b"\\\\u0000",
        b"\\ud800",
        b"\\x41",
        b",",
        b":",
        b"{",
        b"}",
        b"[",
        b"]",
        b"/*a*/",
        b"//",
    ),
    *(b"0", b"-", b"e5", b".0", b" ", b"\t", b"\x0b", b"\xc2\xa0", b"\xe2\x80\xa8", b"\xcc\x88", b"null", b"9" * 40),
]


def _inserted(chance: random.Random, draft: Draft) -> None:
    value = draft.value or b""
    at = chance.randint(0, len(value))
    draft.value = value[:at] + chance.choice(INSERTED) + value[at:]


def _around(chance: random.Random, draft: Draft) -> None:
    value = draft.value or b""
    around = [
        *(b"\xef\xbb\xbf" + value, value + b"\x00", value + value, value + b"\n" + value, value + b",0]", b"[" + value),
        *(b"[[" + value + b"]]", b" \r\n\t" + value + b"\n ", value + b" x", value.decode("latin-1").encode("utf-16")),
        *(b"\x00\x00\x00\x00\x01" + value, json.dumps(value.decode("latin-1")).encode(), b"", b" ", b"null", b"17"),
    ]
    draft.value = chance.choice(around)


def _as_large_as_may_be(chance: random.Random, draft: Draft) -> None:
    room = MAX_BYTES - len(draft.value or b"") - len(draft.key or b"") + chance.choice([-1, 0, 1])
    draft.value = (draft.value or b"") + b" " * room


def _tombstone(chance: random.Random, draft: Draft) -> None:
    draft.value = None


def _other_key(chance: random.Random, draft: Draft) -> None:
    keys = [None, b"", b"\x00", b"\xff\xfe", b"{}", b"[]", b"acme", b'{"account":"other"}', b'{"plan":null}']
    of_it = [(draft.key or b"") + b"x", (draft.value or b"")[:100]]
    draft.key = chance.choice([*keys, b"[" * 2_000, b"k" * (1 << 15), *of_it])


def _other_partition(chance: random.Random, draft: Draft) -> None:
    draft.partition = 1 - draft.partition


def _stamped_by_its_producer(chance: random.Random, draft: Draft) -> None:
    draft.is_broker_stamp = False
    draft.stamp_us = chance.choice([None, 0, -1, -(2**62), 2**62, 253_402_300_800_000_000])


def _stamped_earlier(chance: random.Random, draft: Draft) -> None:
    draft.stamp_us = chance.choice([0, 1, 1_500_000_000_000_000])


OF_BYTES: dict[str, Mutation] = {
    "a bit flipped": _flipped,
    "cut": _cut,
    "bytes missing": _bytes_missing,
    "bytes twice": _bytes_twice,
    "bytes inserted": _inserted,
    "around": _around,
    "as large as may be": _as_large_as_may_be,
    "tombstone": _tombstone,
}
OF_RECORDS: dict[str, Mutation] = {
    "other key": _other_key,
    "other partition": _other_partition,
    "stamped by its producer": _stamped_by_its_producer,
    "stamped earlier": _stamped_earlier,
}
OF_CHANGES: dict[str, Mutation] = {"other key": _other_key}
"""Of a catalog change: its topic has one partition, and the broker stamps it."""
