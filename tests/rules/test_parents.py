"""Whose bill a month is part of. Method: `oracle`; random histories of parents and zones, month by month."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from itertools import islice, pairwise

from hypothesis import given
from hypothesis import strategies as st

from jobs.queries.roll_up import parts_of
from metering.months import ZoneChange, billing_month
from metering.parents import ParentStretch, above, months_of_change, parents_of_month

NAMES = "abcd"
ZONES = ("UTC", "Europe/Berlin", "Pacific/Kiritimati", "America/Los_Angeles")
MONTHS = [date(2025, 12, 1), *(date(2026, month, 1) for month in range(1, 7))]
# Beside midnights of the first days of months, in all the zones.
INSTANTS = sorted(
    datetime(2026, month, 1, tzinfo=UTC) + timedelta(hours=hours)
    for month in (2, 3, 5)
    for hours in (-14, -1, 0, 8, 9, 300)
)
FIRST, LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
instants = st.lists(st.sampled_from(INSTANTS), max_size=5, unique=True).map(sorted)


@st.composite
def stretches(draw: st.DrawFn) -> tuple[ParentStretch, ...]:
    """The empty name stands for a time in which the account is deleted."""
    edges = [None, *draw(instants), None]
    parents = draw(st.lists(st.none() | st.sampled_from(["", *NAMES]), min_size=len(edges), max_size=len(edges)))
    pairs = zip(pairwise(edges), parents, strict=False)
    return tuple(ParentStretch(start, end, parent) for (start, end), parent in pairs if parent != "")


histories = st.dictionaries(st.sampled_from(NAMES), stretches())
calendars = st.fixed_dictionaries({name: st.sampled_from(ZONES) for name in NAMES})


def calendar_of(zones: Mapping[str, str]) -> dict[str, Sequence[ZoneChange]]:
    return {account: [ZoneChange(None, zone)] for account, zone in zones.items()}


@given(histories, calendars)
def test_oracle_a_month_has_the_parent_that_the_account_had_when_it_began(
    history: dict[str, tuple[ParentStretch, ...]], zones: dict[str, str]
) -> None:
    calendar = calendar_of(zones)
    for month in MONTHS:
        found = parents_of_month(history, calendar.__getitem__, month)
        for account in NAMES:
            of_account = billing_month(calendar[account], month)
            # Of its hours the first in which the account was there.
            hours_of_it = (of_account.start + timedelta(hours=hours) for hours in range(24 * 31))
            held = (
                one
                for at in hours_of_it
                if at < of_account.end
                for one in history.get(account, ())
                if (one.holds_from or FIRST) <= at < (one.holds_until or LAST)
            )
            had = [one.parent for one in islice(held, 1) if one.parent is not None]
            if account in found:
                assert [found[account]] == had
            else:
                assert not had or account in above(had[0], {**found, account: had[0]}) or had == [account]


@given(histories, calendars)
def test_no_account_is_its_own_ancestor_even_if_the_catalog_has_a_cycle(
    history: dict[str, tuple[ParentStretch, ...]], zones: dict[str, str]
) -> None:
    """Months of different zones begin at different moments, so that one circle can be no mistake of anybody."""
    calendar = calendar_of(zones)
    for month in MONTHS:
        parents = parents_of_month(history, calendar.__getitem__, month)
        assert all(account not in above(account, parents) for account in NAMES)


@given(histories, calendars)
def test_between_months_of_change_no_month_has_other_parents(
    history: dict[str, tuple[ParentStretch, ...]], zones: dict[str, str]
) -> None:
    calendar, changes = calendar_of(zones), months_of_change(history)
    for earlier, later in pairwise(MONTHS):
        if later not in changes:
            of_both = [parents_of_month(history, calendar.__getitem__, month) for month in (earlier, later)]
            assert of_both[0] == of_both[1]


@given(histories, calendars, st.lists(st.sampled_from("abcdx"), unique=True))
def test_oracle_the_parts_of_a_roll_up_equal_each_month_alone(
    history: dict[str, tuple[ParentStretch, ...]], zones: dict[str, str], accounts: list[str]
) -> None:
    calendar = calendar_of(zones)
    parts = parts_of(history, calendar.__getitem__, accounts)
    for month in MONTHS:
        parents = parents_of_month(history, calendar.__getitem__, month)
        expected = {(account, account) for account in accounts}
        for member in parents:
            line = above(member, parents)
            expected |= {(member, head) for head in (line[-1:] if not accounts else line)}
        if accounts:
            expected = {(member, head) for member, head in expected if head in accounts}
        found = [(part.member, part.head) for part in parts if part.first <= month < part.end]
        assert len(found) == len(set(found)), "no usage is summed twice"
        assert set(found) == expected


def test_an_instant_of_any_year_that_the_catalog_takes_makes_months() -> None:
    """One account with a date that stands for "always" or "never" must not end the lists of all others."""
    bounds = datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, 23, 59, tzinfo=UTC)
    history = {"a": (ParentStretch(*bounds, "b"),)}
    assert all(
        ("a", "b")
        in [(part.member, part.head) for part in parts_of(history, lambda _: (), ()) if part.first <= month < part.end]
        for month in MONTHS
    )
