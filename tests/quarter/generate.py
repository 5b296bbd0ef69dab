"""A quarter that a seed draws: its truth is kept while its records are made. Nothing of Weir."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

from tests.quarter.catalog_of_truth import DAY, FREE_MODEL, HOUR, LATE_MODEL, MODELS, tell_catalog
from tests.quarter.truth import BEGIN, DAYS, TIMEOUT, Asked, Record, Truth

SECOND = timedelta(seconds=1)
REQUEST, COMPLETION, USAGE = (f"ai.inference.{kind}.v1" for kind in ("request", "completion", "usage"))
SOURCE = "gateway"
OLDEST = 33 * DAY
"""Nothing is sent that occurred longer ago."""
Event = dict[str, Any]


def generated(seed: int, events: int, accounts: int = 24) -> Truth:
    """The truth of a quarter of so many records at least."""
    truth, chance = Truth(seed), random.Random(seed)
    tell_catalog(truth, chance, accounts)
    maker = _Maker(truth, chance)
    makers = [maker.prompt, maker.usage, maker.around_grace, maker.straggler, maker.straggler_at_once]
    makers += [maker.told_late, maker.ended_late, maker.given_up, maker.unasked, maker.tried_twice, maker.ended_twice]
    makers += [maker.sent_anew, maker.used_again, maker.failed]
    weights = [64, 8, 4, 5, 1.5, 3, 2, 2, 1, 1, 1, 1.5, 0.5, 1]
    for each in makers:
        each()
    while len(truth.records) < events:
        chance.choices(makers, weights)[0]()
    truth.records.sort(key=lambda record: record.at)
    return truth


class _Maker:
    """Each method is one thing that somebody asks for, and what becomes of its records."""

    def __init__(self, truth: Truth, chance: random.Random) -> None:
        self._truth, self._chance = truth, chance
        self._number = 0
        self._places = _places(truth)

    def prompt(self) -> None:
        """As it should be: a request, and its completion soon after."""
        self._pair("in time", lambda: 0 * SECOND)

    def around_grace(self) -> None:
        """Both parts reach us about when the grace of their window ends."""
        self._pair("about as late as grace", lambda: self._chance.uniform(600, 1_200) * SECOND)

    def straggler(self) -> None:
        """Both parts reach us hours to thirty days late."""
        self._pair("stragglers, hours to 30 days late", self._days_late)

    def _days_late(self) -> timedelta:
        return self._chance.choice([self._chance.uniform(1, 24) * HOUR, self._chance.uniform(1, 30) * DAY])

    def _pair(self, count: str, late: Callable[[], timedelta]) -> None:
        begun = self._instant()
        request, by = self._request(begun), late()
        ended = begun + self._chance.uniform(0.2, 120) * SECOND
        completion, quantities = self._completion(request, ended)
        begun_at = self._send(request, begun + by + self._delay())
        known = self._send(completion, max(begun_at, ended + by + self._delay()))
        self._ask(count, request, ended, known, quantities)
        self._tell_again([(request, begun_at), (completion, known)])

    def usage(self) -> None:
        """A gateway that reports once, in time."""
        self._at_once("in time, reported at once", 0 * SECOND)

    def straggler_at_once(self) -> None:
        """A gateway that reports once, hours to thirty days late."""
        self._at_once("stragglers, reported at once", self._days_late())

    def _at_once(self, count: str, late: timedelta) -> None:
        occurred = self._instant()
        event = self._request(occurred)
        said, quantities = self._reported()
        for each in (said, quantities):
            # Its contract has none.
            each.pop("gpu_seconds", None)
        event = {**event, "type": USAGE, "data": {**event["data"], **said}}
        known = self._send(event, occurred + late + self._delay())
        self._ask(count, event, occurred, known, quantities)
        self._tell_again([(event, known)])

    def told_late(self) -> None:
        """It ended soon, and its completion reaches us hours later."""
        begun = self._instant()
        ended = begun + self._chance.uniform(0.2, 120) * SECOND
        self._apart("completions told hours late", begun, ended, self._chance.uniform(0.5, 60) * HOUR)

    def ended_late(self) -> None:
        """It ended hours later."""
        begun = self._instant()
        ended = begun + self._chance.uniform(660, 40_000) * SECOND
        self._apart("completions that came hours later", begun, ended, 0 * SECOND)

    def _apart(self, count: str, begun: datetime, ended: datetime, late: timedelta) -> None:
        request = self._request(begun)
        completion, quantities = self._completion(request, ended)
        begun_at = self._send(request, begun + self._delay())
        told_at = self._send(completion, ended + late + self._delay())
        self._ask(count, request, ended, told_at + TIMEOUT, quantities)
        self._tell_again([(request, begun_at), (completion, told_at)])

    def given_up(self) -> None:
        """Nobody hears of its end."""
        begun = self._instant()
        request = self._request(begun)
        begun_at = self._send(request, begun + self._delay())
        self._ask("requests without an end", request, begun, begun_at + TIMEOUT, {"requests": Decimal(1)})
        self._tell_again([(request, begun_at)])

    def unasked(self) -> None:
        """Nobody hears of its beginning: whose model it was is not known."""
        ended = self._instant()
        request = self._request(ended)
        completion, quantities = self._completion(request, ended)
        told_at = self._send(completion, ended + self._delay())
        self._truth.counts["ends without a request"] += 1
        counted = {meter: many for meter, many in quantities.items() if meter != "requests"}
        self._truth.asked.append(Asked(request["subject"], None, (), ended, told_at + TIMEOUT, counted))

    def tried_twice(self) -> None:
        """A gateway sends a request again under another id, before it ends."""
        begun = self._instant()
        request = self._request(begun)
        again = {**request, "id": self._id(), "time": begun + SECOND}
        ended = begun + self._chance.uniform(70, 120) * SECOND
        completion, quantities = self._completion(request, ended)
        begun_at = self._send(request, begun + self._delay())
        self._send(again, begun_at + self._chance.uniform(1, 60) * SECOND)
        known = self._send(completion, max(begun_at + 61 * SECOND, ended + self._delay()))
        self._ask("requests sent under two ids", request, ended, known, quantities)

    def ended_twice(self) -> None:
        """Two completions of one request: the first counts."""
        begun = self._instant()
        request = self._request(begun)
        ended = begun + self._chance.uniform(1, 120) * SECOND
        completion, quantities = self._completion(request, ended)
        other, _ = self._completion(request, ended + SECOND)
        begun_at = self._send(request, begun + self._delay())
        known = self._send(completion, max(begun_at, ended + self._delay()))
        self._send(other, known + self._chance.uniform(1, 60) * SECOND)
        self._ask("completions sent under two ids", request, ended, known, quantities)

    def sent_anew(self) -> None:
        """A request is sent anew hours later, with another time; then it ends."""
        begun = self._instant()
        request = self._request(begun)
        self._send(request, begun + self._delay())
        anew = {**request, "time": begun + self._chance.uniform(4_000, 40_000) * SECOND}
        anew_at = self._send(anew, anew["time"] + self._delay())
        ended = anew["time"] + self._chance.uniform(0.2, 120) * SECOND
        completion, quantities = self._completion(request, ended)
        known = self._send(completion, max(anew_at, ended + self._delay()))
        self._ask("requests sent anew, and then ended", request, ended, known, quantities)

    def used_again(self) -> None:
        """A client uses a request id again days later: two things that somebody asked for."""
        begun = self._instant()
        first = self._request(begun)
        for days in (0, self._chance.uniform(2, 20)):
            again = {**first, "id": self._id(), "time": begun + days * DAY}
            ended = again["time"] + self._chance.uniform(0.2, 120) * SECOND
            completion, quantities = self._completion(again, ended)
            begun_at = self._send(again, again["time"] + self._delay())
            known = self._send(completion, max(begun_at, ended + self._delay()))
            self._ask("request ids used again", again, ended, known, quantities)

    def failed(self) -> None:
        """It ended in an error, and reports nothing; something unreadable beside it."""
        begun = self._instant()
        request = self._request(begun)
        ended = begun + self._chance.uniform(0.2, 120) * SECOND
        completion, _ = self._completion(request, ended)
        completion["data"] = {"request_id": request["data"]["request_id"], "status": "error"}
        begun_at = self._send(request, begun + self._delay())
        known = self._send(completion, max(begun_at, ended + self._delay()))
        self._ask("requests that failed", request, ended, known, {"requests": Decimal(1)})
        self._truth.counts["records: unreadable"] += 1
        self._truth.records.append(Record(_stamp(known), request["subject"], b'{"specversion": "1.0", '))

    def _ask(
        self, count: str, request: Event, occurred: datetime, known: datetime, quantities: Mapping[str, Decimal]
    ) -> None:
        data = request["data"]
        dimensions = tuple((name, data[name]) for name in ("api_key_id", "region") if name in data)
        self._truth.counts[count] += 1
        self._truth.asked.append(
            Asked(request["subject"], data["model"], dimensions, occurred, known, dict(quantities))
        )

    def _tell_again(self, told: list[tuple[Event, datetime]]) -> None:
        """Now and then one of the records comes again: as it was, with another time, or with other content."""
        event, at = self._chance.choice(told)
        room = OLDEST - (at - event["time"])
        drawn = self._chance.random()
        if drawn < 0.03:
            self._truth.counts["records: the same again, up to 30 days later"] += 1
            self._send(event, at + self._chance.choice([5 * SECOND, HOUR, min(30 * DAY, room)]) * self._chance.random())
        elif drawn < 0.05:
            self._truth.counts["records: again with another time, hours to days later"] += 1
            later = at + self._chance.choice([self._chance.uniform(1.1, 24) * HOUR, self._chance.uniform(1, 20) * DAY])
            self._send({**event, "time": later - SECOND}, later)
        elif drawn < 0.055:
            self._truth.counts["records: another under the same identity"] += 1
            changed = {**event["data"], "user_id": "somebody-else", "input_tokens": 999}
            self._send({**event, "data": changed}, at + self._chance.uniform(1, 3_000) * SECOND)

    def _request(self, at: datetime) -> Event:
        chance = self._chance
        model = chance.choices([*MODELS, LATE_MODEL, FREE_MODEL], [5, 4, 3, 1, 0.3])[0]
        account = chance.choice(list(self._truth.zones))
        data = {"request_id": f"r-{self._id()}", "user_id": f"u-{chance.randrange(9)}", "model": model}
        data |= {"region": chance.choice(["eu", "us", "in"])}
        data |= {"api_key_id": f"{account}-key-{chance.randrange(4)}"} if chance.random() < 0.9 else {}
        return {"type": REQUEST, "id": self._id(), "subject": account, "time": at, "data": data}

    def _completion(self, request: Event, at: datetime) -> tuple[Event, dict[str, Decimal]]:
        said, quantities = self._reported()
        data = {"request_id": request["data"]["request_id"], **said}
        event = {"type": COMPLETION, "id": self._id(), "subject": request["subject"], "time": at, "data": data}
        return event, quantities

    def _reported(self) -> tuple[dict[str, Any], dict[str, Decimal]]:
        """What an end reports, and what is to be counted of it."""
        chance = self._chance
        tokens = chance.choice([chance.randint(1, 4_000), chance.randint(1, 10**6), chance.randint(1, 10**10)])
        said: dict[str, Any] = {"input_tokens": tokens, "output_tokens": chance.choice([0, chance.randint(1, 9_999)])}
        if chance.random() < 0.5:
            said["cached_tokens"] = chance.randint(0, tokens)
        if chance.random() < 0.3:
            said["gpu_seconds"] = chance.randint(1, 86_400_000_000) / 1_000_000
        quantities = {meter: Decimal(str(many)) for meter, many in said.items()}
        return {"status": "completed", **said}, {"requests": Decimal(1), **quantities}

    def _instant(self) -> datetime:
        """When something happens: any time, or about where a month, a day of another length or a price begins."""
        if self._chance.random() < 0.06:
            return self._chance.choice(self._places) + self._chance.uniform(-150, 150) * SECOND
        return BEGIN + self._chance.uniform(0, DAYS) * DAY

    def _delay(self) -> timedelta:
        return self._chance.uniform(0.01, 3) * SECOND

    def _id(self) -> str:
        self._number += 1
        return f"{self._number:x}"

    def _send(self, event: Event, at: datetime) -> datetime:
        """A record of an event that reaches the broker then; when that is, as it stamps it."""
        document = {"specversion": "1.0", "source": SOURCE, **event, "time": event["time"].isoformat()}
        self._truth.records.append(Record(_stamp(at), event["subject"], json.dumps(document).encode()))
        return _stamp(at)


def _stamp(at: datetime) -> datetime:
    return at.replace(microsecond=at.microsecond // 1_000 * 1_000)


def _places(truth: Truth) -> list[datetime]:
    firsts = [datetime(2025, month, 1, tzinfo=ZoneInfo(z)) for month in (2, 3) for z in sorted({*truth.zones.values()})]
    changes_of_clocks = [datetime(2025, 3, 9, 7, tzinfo=UTC), datetime(2025, 3, 10, 4, tzinfo=UTC)]
    begun = [at for known in truth.prices.values() for at in known if at > BEGIN]
    prices = [at for at in begun if at < BEGIN + DAYS * DAY]
    return [each.astimezone(UTC) for each in firsts] * 8 + changes_of_clocks * 4 + prices
