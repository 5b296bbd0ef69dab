"""Traffic to measure with: pairs of a request and its completion, made fast. Not the truth generator."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

ACCOUNTS = 50
MODELS = 12
USERS = 5_000
GATEWAYS = 8
DUPLICATES = 0.05
"""The share of records that are sent a second time."""
COMPLETION_DELAY = 500
"""A completion comes so many requests after its own, so that batches cut between the two."""
SPREAD_SECONDS = 240
"""Event times lie within so many seconds before they are sent: several windows, none of them over."""

_REQUEST = (
    '{"specversion":"1.0","type":"ai.inference.request.v1","source":"gateway/eu-%d","id":"%s-r","subject":"acct-%02d",'
    '"time":"%s.%03dZ","senttime":"%s.%03dZ","sequence":"%%d","data":{"request_id":"%s","user_id":"user-%05d",'
    '"api_key_id":"key-%05d","model":"model-%02d","operation":"chat","route":"/v1/chat/completions","region":"eu-1",'
    '"content_hash":"%016x%016x"}}'
)
_COMPLETION = (
    '{"specversion":"1.0","type":"ai.inference.completion.v1","source":"gateway/eu-%d","id":"%s-c","subject":"acct-%02d",'
    '"time":"%s.%03dZ","senttime":"%s.%03dZ","sequence":"%%d","data":{"request_id":"%s","status":"completed",'
    '"input_tokens":%d,"output_tokens":%d,"cached_tokens":%d,"cached":false,"usage_source":"provider","latency_ms":%d%s}}'
)


@dataclass(frozen=True)
class Record:
    """One Kafka record of `events`."""

    key: bytes
    value: bytes


@dataclass(frozen=True)
class Unsent:
    """An event before its gateway sends it, and so numbers it: the text has `%d` in that place."""

    gateway: int
    key: bytes
    text: str

    def sent(self, sequence: int) -> Record:
        """The record of the event with its gateway's next number."""
        return Record(self.key, (self.text % sequence).encode())


def records(count: int, run: str, now: datetime, seed: int = 1, reports: Sequence[str] = ()) -> Iterator[Record]:
    """Exactly `count` records; `run` keeps the ids of one call apart from those of another.

    Completions report these quantities, too, with three decimals.
    """
    chance = random.Random(seed)
    seconds = [(now - timedelta(seconds=s)).strftime("%Y-%m-%dT%H:%M:%S") for s in range(SPREAD_SECONDS)]
    waiting: list[Unsent] = []
    sequences = [itertools.count() for _ in range(GATEWAYS)]
    left, number = count, 0
    while left > 0:
        request, completion = _pair(number, run, seconds, chance, reports)
        waiting.append(completion)
        unsent = [request, *([waiting.pop(0)] if len(waiting) > COMPLETION_DELAY else [])]
        due = [event.sent(next(sequences[event.gateway])) for event in unsent]
        for record in [*due, *(record for record in due if chance.random() < DUPLICATES)][:left]:
            left -= 1
            yield record
        number += 1


def one_pair(run: str, now: datetime) -> Iterator[Record]:
    """A request and its completion, both now."""
    pair = _pair(0, run, [now.strftime("%Y-%m-%dT%H:%M:%S")], random.Random(run))
    yield from (event.sent(sequence) for sequence, event in enumerate(pair))


def _pair(
    number: int, run: str, seconds: list[str], chance: random.Random, reports: Sequence[str] = ()
) -> tuple[Unsent, Unsent]:
    request_id = f"{run}-{number:09d}"
    user, model = int(USERS * chance.random() ** 2), int(MODELS * chance.random() ** 2)
    account = user % ACCOUNTS
    second, milli = seconds[int(len(seconds) * chance.random())], number % 1_000
    gateway = account % GATEWAYS
    head = (gateway, request_id, account, second, milli, second, milli)
    hashed = (chance.getrandbits(64), chance.getrandbits(64))
    request = _REQUEST % (*head, request_id, user, user, model, *hashed)
    tokens = (200 + number % 3_000, 50 + number % 700, number % 90, 300 + number % 9_000)
    further = "".join(f',"{name}":{number % (97 + place)}.{number % 1_000:03d}' for place, name in enumerate(reports))
    completion = _COMPLETION % (*head, request_id, *tokens, further)
    key = b"acct-%02d" % account
    return Unsent(gateway, key, request), Unsent(gateway, key, completion)


def catalog(
    further: Sequence[str] = (), conditions: Sequence[Mapping[str, str]] = ()
) -> dict[str, list[dict[str, Any]]]:
    """A catalog file (as `weir catalog apply` takes it) that prices all that `records` makes, and `further` meters.

    Input has a price under each of these conditions, too.
    """
    since = datetime(2026, 1, 1, tzinfo=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    plans = [{"plan": "bench", "name": "bench"}]
    accounts = [
        {"account": f"acct-{n:02d}", "name": f"acct-{n:02d}", "plan": "bench", "currency": "EUR", "timezone": "UTC"}
        for n in range(ACCOUNTS)
    ]
    units = {
        "requests": "0.0001",
        "input_tokens": "0.00000015",
        "output_tokens": "0.0000006",
        "cached_tokens": "0.00000007",
        **dict.fromkeys(further, "0.000123"),
    }
    priced: list[tuple[str, str, dict[str, Any]]] = [(meter, unit, {}) for meter, unit in units.items()]
    priced += [("input_tokens", f"0.0000001{place}", {"conditions": of}) for place, of in enumerate(conditions)]
    prices = [
        {"plan": "bench", "model": f"model-{n:02d}", **of, "meter": meter, "unit_price": unit, "currency": "EUR"}
        | {"effective_from": since}
        for n in range(MODELS)
        for meter, unit, of in priced
    ]
    return {"plans": plans, "accounts": accounts, "prices": prices}
