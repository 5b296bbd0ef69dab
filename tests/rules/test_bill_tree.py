"""Bills stand below those that they are part of, and each says what it is with all below it, by currency."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from dashboard.queries.bills import Period
from dashboard.views.bill_tree import branches

NOON = datetime(2026, 1, 1, tzinfo=UTC)
NAMES = "abcdef"


@dataclass(frozen=True)
class Owed:
    """What an account owes in a currency."""

    period: Period
    currency: str | None
    amount: Decimal | None


def periods(parents: Mapping[str, str | None]) -> dict[str, Period]:
    return {name: Period(name, name, "UTC", NOON, NOON, parent) for name, parent in parents.items()}


amounts = st.dictionaries(
    st.tuples(st.sampled_from(NAMES), st.sampled_from(["EUR", "USD"])),
    st.none() | st.integers(0, 10**6).map(lambda units: Decimal(units).scaleb(-12)),
)


@settings(deadline=None)
@given(amounts, st.lists(st.integers(0, 9), min_size=6, max_size=6))
def test_oracle_the_sum_of_an_account_includes_its_descendants(
    owed: dict[tuple[str, str], Decimal | None], choices: list[int]
) -> None:
    parents = {name: [None, *NAMES[:n]][choices[n] % (n + 1)] for n, name in enumerate(NAMES)}
    known = periods(parents)
    totals = [Owed(known[name], currency, amount) for (name, currency), amount in owed.items()]
    tree = branches(totals, known)

    lines = {name: [name] for name in NAMES}
    for name in NAMES:
        while (above := parents[lines[name][-1]]) is not None:
            lines[name].append(above)
    expected: dict[tuple[str, str | None], Decimal | None] = {}
    for (name, currency), amount in owed.items():
        for head in lines[name]:
            before = expected.get((head, currency))
            expected[head, currency] = before if amount is None else amount + (before or 0)
    assert {(branch.account, branch.currency): branch.amount for branch in tree} == expected
    assert [branch.depth for branch in tree] == [len(lines[branch.account]) - 1 for branch in tree]
    for above, below in pairwise(tree):
        assert below.depth <= above.depth + 1
        if below.depth > above.depth:
            assert (above.account, above.currency) == (parents[below.account], below.currency)


def test_a_bill_of_an_account_shows_only_its_descendants() -> None:
    known = periods({"a": None, "b": "a", "c": "b", "d": "a"})
    totals = [Owed(known[name], "EUR", Decimal(1)) for name in "abcd"]
    assert [(one.account, one.amount) for one in branches(totals, known, "b")] == [
        ("b", Decimal(2)),
        ("c", Decimal(1)),
    ]
    assert branches(totals, known, "nobody") == []


def test_a_hidden_parent_is_no_parent() -> None:
    known = periods({"b": "hidden"})
    assert [one.depth for one in branches([Owed(known["b"], "EUR", None)], known)] == [0]
