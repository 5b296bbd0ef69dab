"""Valid events and catalog changes, each with one to four mutations: the same for a seed and a number, for ever.

Every mutation has a chance of its own, so that a record can be made again without some of them (`shrunk`).
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import combinations
from typing import Any

from jobs.streams import CatalogTopic
from metering.meters import Meter
from tests.corpus import documents
from tests.corpus.documents import completion, request, request_with
from tests.corpus.drafts import Draft, Mutation, tree_of
from tests.corpus.mutations import OF_TREES
from tests.corpus.mutations_of_bytes import OF_BYTES, OF_CHANGES, OF_RECORDS

RECEIVED_AT = documents.RECEIVED_AT.replace(year=2025)
"""When they are received: in the past of any machine's clock. `odd_values.INSTANTS` are around it."""
CATALOG_SHARE = 4
"""One record of so many is a catalog change."""
ACCOUNTS = ("acme", "umbrella", "Zoë & Söhne")
MODELS = ("small-2", "large-2")
METERS = (*(meter.value for meter in Meter), "images")
"""Of prices: those that are declared, and one that is not."""
COMMITTED_MS = 1_750_000_000_000
PRICE = {"plan": "pro", "currency": "EUR", "unit_price": "99999999.999999999999"}


@dataclass(frozen=True)
class Mutant:
    """A record, and how it came about; `topic` None is `events`."""

    seed: int
    number: int
    mutations: tuple[str, ...]
    topic: CatalogTopic | None
    draft: Draft

    def __str__(self) -> str:
        """What a person needs to see it again."""
        document = repr(self.draft.value)
        shown = document if len(document) < 2_000 else f"{document[:1_000]}… {len(document)} …{document[-200:]}"
        where = f"partition {self.draft.partition}, key {self.draft.key!r:.200}, stamp {self.draft.stamp_us}"
        return f"seed {self.seed}, number {self.number}, {list(self.mutations)}: {where}, value {shown}"


def mutant(seed: int, number: int, without: Collection[int] = ()) -> Mutant:
    """The record of this seed and number; `without` some of its mutations, by their place."""
    chance = random.Random(f"{seed}:{number}")
    topic = chance.choice(list(CatalogTopic)) if number % CATALOG_SHARE == CATALOG_SHARE - 1 else None
    draft = _event(chance, seed, number) if topic is None else _change(chance, topic, number)
    of_records = OF_RECORDS if topic is None else OF_CHANGES
    names = chance.choices([*OF_TREES, *OF_BYTES, *of_records], k=chance.choice([1, 1, 1, 2, 2, 3, 4]))
    kept = [(place, name) for place, name in enumerate(names) if place not in without]

    def apply(mutations: dict[str, Mutation]) -> None:
        for place, name in kept:
            if name in mutations:
                mutations[name](random.Random(f"{seed}:{number}:{place}"), draft)

    apply(OF_TREES)
    draft.write()
    apply(OF_BYTES)
    apply(of_records)
    return Mutant(seed, number, tuple(name for _, name in kept), topic, draft)


def shrunk(found: Mutant, fails: Callable[[Mutant], bool]) -> Mutant:
    """The same record with the fewest mutations with which it still `fails`."""
    places = range(len(found.mutations))
    for kept in range(len(places)):
        for chosen in combinations(places, kept):
            smaller = mutant(found.seed, found.number, set(places) - set(chosen))
            if fails(smaller):
                return smaller
    return found


def _event(chance: random.Random, seed: int, number: int) -> Draft:
    # Two neighbours may be one request and its completion.
    name, occurred = f"{seed}-{number}", RECEIVED_AT - timedelta(milliseconds=chance.randrange(600_000))
    about: dict[str, Any] = {"request_id": f"r{seed}-{number // 2}"}
    spent = completion(**about)["data"] | {"input_tokens": chance.randrange(10_000), "output_tokens": number}
    asked = request_with(**about, model=chance.choice(MODELS), user_id=f"user-{number % 7}")["data"]
    kind = chance.randrange(12)
    if kind < 4:
        event = request(data=asked)
    elif kind < 8:
        event = {**completion(), "data": spent}
    elif kind < 10:
        event = request(type="ai.inference.usage.v1", data={**asked, **spent})
    elif kind == 10:
        event = request(type="source.heartbeat.v1", data={})
    else:
        event = request(type="com.example.something.v9", data=chance.choice([[1, "two"], asked, None]))
    if chance.random() < 0.3:
        event |= {"sequence": number, "sourceepoch": "boot-1"}
    if chance.random() < 0.2:
        event |= {"source": "device/7", "senttime": _written(occurred + timedelta(hours=chance.randint(-2, 2)))}
    if chance.random() < 0.05:
        # Sent again, the same or not.
        name = f"{seed}-{chance.randrange(number + 1)}"
    event |= {"id": name, "subject": ACCOUNTS[number // 2 % len(ACCOUNTS)], "time": _written(occurred)}
    return Draft(tree_of(event), b"k", partition=chance.randrange(2))


def _change(chance: random.Random, topic: CatalogTopic, number: int) -> Draft:
    account = {"account": ACCOUNTS[number % len(ACCOUNTS)], "plan": "pro", "currency": "EUR"}
    states: dict[CatalogTopic, tuple[tuple[str, ...], dict[str, Any]]] = {
        CatalogTopic.ACCOUNTS: (("account",), {**account, "name": "Acme", "timezone": "Europe/Berlin"}),
        CatalogTopic.PLANS: (("plan",), {"plan": "pro", "name": "Pro"}),
        CatalogTopic.PRICES: (
            ("plan", "model", "meter", "currency"),
            {**PRICE, "model": chance.choice(MODELS), "meter": chance.choice(METERS)},
        ),
        CatalogTopic.DECISIONS: (
            ("usage_lsn", "meter"),
            {
                "usage_lsn": number + 1,
                "meter": chance.choice(METERS),
                "account": account["account"],
                "request_id": f"r{number}",
                "decision": chance.choice(["approve", "reject"]),
                "reason": "as agreed",
                "decided_by": "ann",
            },
        ),
    }
    key, state = states[topic]
    state["effective_from"] = _written(RECEIVED_AT - timedelta(days=chance.randrange(200)))
    op = chance.choice("ccurd")
    before, after = (state, None) if op == "d" else (None, state)
    envelope = {"before": before, "after": after, "op": op, "ts_ms": COMMITTED_MS + number}
    if chance.random() < 0.5:
        envelope["source"] = {"ts_ms": COMMITTED_MS, "table": topic.value, "lsn": number}
    return Draft(tree_of(envelope), json.dumps({name: state[name] for name in key}).encode())


def _written(instant: datetime) -> str:
    return instant.isoformat(timespec="milliseconds").replace("+00:00", "Z")
