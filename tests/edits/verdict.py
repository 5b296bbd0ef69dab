"""Every usage row's contract, prices and amounts, beside what an independent computation gives."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal, localcontext
from typing import Any

from tests.edits.as_of import Told, contract, known, price
from tests.edits.told import Captured
from tests.edits.traffic import Sent

Row = Mapping[str, Any]
Cell = tuple[Decimal, int | None, Decimal | None, Decimal | None]
"""Of a meter: quantity, price version, unit price, amount."""
PLANTED = Decimal("0.000000000001")


@dataclass
class Verdict:
    """`wrong` has a line for each difference; `counts` how much was compared, and how much of it could have failed."""

    wrong: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


class Computed:
    """What usage must say, from what the journal has told of the catalog."""

    def __init__(self, captured: Captured) -> None:
        self._accounts = captured.accounts
        self._rows: dict[tuple[str, str, str, str], dict[datetime, list[Told]]] = defaultdict(dict)
        for key, told in captured.prices.items():
            self._rows[key[:4]][key[4]] = told

    def cells(self, sent: Sent, decided_lsn: int) -> tuple[str | None, str | None, dict[str, Cell]]:
        """Plan, currency, and of each meter what it counts and costs, as known at `decided_lsn`."""
        holds = contract(known(self._accounts.get(sent.account, ()), decided_lsn), sent.event_time)
        cells: dict[str, Cell] = {}
        for meter, count in sent.quantities.items():
            told = None
            if holds is not None:
                rows = self._rows.get((holds.plan, sent.model, meter, holds.currency), {})
                visible = {begins: known(states, decided_lsn) for begins, states in rows.items()}
                told = price(visible, sent.event_time)
            cells[meter] = _cell(Decimal(count), told)
        if holds is None:
            return None, None, cells
        return holds.plan, holds.currency, cells


def _cell(quantity: Decimal, told: Told | None) -> Cell:
    if told is None or told.unit_price is None:
        return quantity, None, None, None
    with localcontext() as exact:
        exact.prec = 60
        return quantity, told.lsn, told.unit_price, quantity * told.unit_price


def compared(
    sent: Mapping[str, Sent], captured: Captured, usage: Iterable[Row], lsns: Mapping[str, Sequence[int]], end: int
) -> Verdict:
    """In: usage (cause `stream`), by request the lsns of its accepted events, and the journal's next lsn."""
    verdict, computed = Verdict(), Computed(captured)
    rows: dict[str, list[Row]] = defaultdict(list)
    for row in usage:
        rows[row["request_id"]].append(row)
    for request_id in rows.keys() - sent.keys():
        verdict.wrong.append(f"{request_id} is billed, and nobody has sent it")
    for request_id, one in sent.items():
        found = rows.get(request_id, [])
        if len(found) != 1:
            verdict.wrong.append(f"{request_id} has {len(found)} rows of usage")
            continue
        decided = max(lsns.get(request_id, (0,)))
        verdict.wrong += [f"{request_id} {line}" for line in _differences(found[0], computed.cells(one, decided))]
        _count(verdict.counts, computed, one, decided, end)
    return verdict


def _differences(row: Row, expected: tuple[str | None, str | None, dict[str, Cell]]) -> Iterable[str]:
    plan, currency, cells = expected
    if (row["plan"], row["currency"]) != (plan, currency):
        yield f"is of {row['plan']} in {row['currency']}, and must be of {plan} in {currency}"
    found = {
        one["meter"]: (one["quantity"], one["price_version"], one["unit_price"], one["amount"])
        for one in row["meters"]
        if one["quantity"] is not None
    }
    for meter in found.keys() | cells.keys():
        if found.get(meter) != cells.get(meter):
            yield f"{meter}: has {found.get(meter)}, and must have {cells.get(meter)}"


def _count(counts: Counter[str], computed: Computed, one: Sent, decided: int, end: int) -> None:
    """What was compared, and how much of it another computation would have got wrong."""
    plan, _, cells = computed.cells(one, decided)
    later_plan, _, later = computed.cells(one, end)
    counts["rows of usage"] += 1
    counts["rows without a contract"] += plan is None
    counts["rows whose contract another was told for since"] += plan != later_plan
    for meter, cell in cells.items():
        counts["price versions"] += 1
        counts["without a price"] += cell[1] is None
        counts["that would be another, had the end been known"] += cell[1] != later[meter][1]
