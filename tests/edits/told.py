"""What the journal tells of the catalog, beside what the database has committed; and what joins made of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from tests.edits.as_of import Told
from tests.edits.editor import History, PriceKey, State

Row = Mapping[str, Any]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass
class Captured:
    """Histories with where the journal tells each state first. `wrong`: what is lost, doubled or nobody's."""

    prices: dict[PriceKey, list[Told]] = field(default_factory=dict)
    accounts: dict[str, list[Told]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    repeats: int = 0


def captured(history: History, journal: Iterable[Row], names: str) -> Captured:
    """In: accepted rows of the journal (lsn, topic, value), by lsn."""
    found = Captured()
    places: dict[tuple[str, Any], dict[tuple[bool, datetime], int]] = {}
    tables: dict[str, Mapping[Any, list[State]]] = {
        "catalog.prices": history.prices,
        "catalog.accounts": history.accounts,
        "catalog.plans": history.plans,
    }
    for topic, states in tables.items():
        for key, said in states.items():
            places[topic, key] = {(state.values is None, state.mark): number for number, state in enumerate(said)}
    reached = dict.fromkeys(places, -1)
    for row in journal:
        if row["topic"] not in tables or row["value"] is None:
            continue
        change = json.loads(row["value"], parse_float=Decimal)
        is_deletion = change["op"] == "d"
        said = change["before" if is_deletion else "after"]
        if not said.get("plan", "").startswith(names) and not said.get("account", "").startswith(names):
            continue
        at = row["topic"], _key(row["topic"], said)
        number = places.get(at, {}).get((is_deletion, _instant(said["changed_at"])))
        if number is None:
            found.wrong.append(f"{at} was captured at lsn {row['lsn']}, and nobody has committed it")
            continue
        if number <= reached[at]:
            found.repeats += 1
            continue
        if number > reached[at] + 1:
            found.wrong.append(f"{at}: {number - reached[at] - 1} changes before lsn {row['lsn']} are lost")
        reached[at] = number
        state = tables[row["topic"]][at[1]][number]
        _add(found, row, change, at[1], state)
    for at, number in reached.items():
        if number + 1 < len(places[at]):
            found.wrong.append(f"{at}: the last {len(places[at]) - number - 1} changes are lost")
    return found


def _add(found: Captured, row: Row, change: Row, key: Any, state: State) -> None:
    lsn, values, source = row["lsn"], state.values, change["source"]
    if row["topic"] == "catalog.prices":
        at = _EPOCH + timedelta(microseconds=source["ts_us"]) if values is None else None
        unit_price = None if values is None else values[0]
        if values is not None and Decimal(change["after"]["unit_price"]) != unit_price:
            found.wrong.append(f"{key} is {change['after']['unit_price']} at lsn {lsn}, and not {unit_price}")
        found.prices.setdefault(key, []).append(Told(lsn, key[-1], at, unit_price=unit_price))
    elif row["topic"] == "catalog.accounts":
        if values is None:
            at = _EPOCH + timedelta(milliseconds=source["ts_ms"])
            found.accounts.setdefault(key, []).append(Told(lsn, at, at))
        else:
            _, plan, currency, _, since = values
            found.accounts.setdefault(key, []).append(Told(lsn, since, None, plan, currency))


def versions_differ(history: History, found: Captured, prices: Iterable[Row], accounts: Iterable[Row]) -> Iterator[str]:
    """A sentence for each row whose versions (of joins, by lsn) are not what it has said, one after the other."""
    held: dict[Any, list[Any]] = {}
    for row in prices:
        values = None if row["deleted"] else (row["unit_price"],)
        held.setdefault(_key("catalog.prices", row), []).append((row["lsn"], values, _author(row)))
    for row in accounts:
        values = tuple(row[name] for name in ("name", "plan", "currency", "timezone", "effective_from"))
        held.setdefault(row["account"], []).append((row["lsn"], None if row["deleted"] else values, _author(row)))
    rows: list[tuple[Any, list[State], list[Told]]] = [
        *((key, said, found.prices.get(key, [])) for key, said in history.prices.items()),
        *((account, said, found.accounts.get(account, [])) for account, said in history.accounts.items()),
    ]
    for key, said, told in rows:
        expected = [
            (one.lsn, state.values, None if state.values is None else (state.by, state.mark))
            for one, state in zip(told, said, strict=False)
        ]
        if held.get(key, []) != expected:
            yield f"{key}: joins holds {held.get(key)}, and the database has said {expected}"


def _author(version: Row) -> tuple[str, datetime] | None:
    """Who made it so, and when; who deleted a row need not be known."""
    return None if version["deleted"] else (version["changed_by"], version["changed_at"])


def _key(topic: str, row: Row) -> Any:
    if topic == "catalog.prices":
        since = row["effective_from"]
        since = since if isinstance(since, datetime) else _instant(since)
        return row["plan"], row["model"], row["meter"], row["currency"], since
    return row["account" if topic == "catalog.accounts" else "plan"]


def _instant(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)
