"""Filters lose no member, however often they are halved, and an older event that is asked twice is answered twice."""

from __future__ import annotations

from datetime import timedelta
from random import Random
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.ingestion.identity_filter import IdentityFilter, Probes
from jobs.ingestion.identity_segment import MAX_HALVINGS
from jobs.ingestion.repeats import candidates
from tests.rules.test_identity_index import (
    HORIZONS,
    PLENTY,
    START,
    Dispositions,
    Journal,
    event,
    frame,
    identity,
    oracle,
)

words = st.integers(0, 2**64 - 1)


@given(st.sets(st.tuples(words, words), min_size=1, max_size=200), st.integers(0, MAX_HALVINGS))
def test_no_member_is_lost(members: set[tuple[int, int]], halvings: int) -> None:
    rows = pl.DataFrame(list(members), schema={"high": pl.UInt64, "low": pl.UInt64}, orient="row")
    asked = Probes.of(rows["high"].to_numpy(), rows["low"].to_numpy())
    found = IdentityFilter(asked)
    for _ in range(halvings):
        found.halve()
    assert found.may_hold(asked).all()


def test_members_are_kept_and_few_strangers_pass_as_memory_gets_short() -> None:
    rng = np.random.default_rng(1)
    high, low = rng.integers(0, 2**64, (2, 1 << 14), dtype=np.uint64)
    strangers = rng.integers(0, 2**64, (2, 1 << 14), dtype=np.uint64)
    found = IdentityFilter(Probes.of(high, low))
    passed = []
    for _ in range(MAX_HALVINGS + 1):
        assert found.may_hold(Probes.of(high, low)).all()
        passed.append(found.may_hold(Probes.of(*strangers)).mean())
        found.halve()
    assert [share < limit for share, limit in zip(passed, (0.0001, 0.001, 0.003, 0.05, 0.5), strict=True)] == [True] * 5


@pytest.mark.long
def test_oracle_repeats_are_found_again_and_again_with_any_memory() -> None:
    for memory_bytes in (PLENTY, 1 << 14, 1 << 12, 400):
        rng, journal = Random(memory_bytes), Journal()
        index, committed = journal.index(memory_bytes), list[dict[str, Any]]()
        found: Dispositions = {}
        sent = [event(number, START + timedelta(hours=number)) for number in range(200)]
        for row in sent:
            found |= journal.commit(index, [row], row["received_at"])
            committed.append(row)
        for _ in range(8):
            now = committed[-1]["received_at"] + timedelta(minutes=5)
            again = [{**row, "received_at": now} for row in rng.sample(sent, 40)]
            found |= journal.commit(index, again, now)
            committed += again
        assert found == oracle(committed)
        assert len(found) == 320


def test_a_page_of_the_journal_is_read_once_for_all_batches() -> None:
    journal = Journal()
    index = journal.index()
    for hour in range(20):
        at = START + timedelta(hours=hour)
        journal.commit(index, [event(2 * (4 * hour + n), at) for n in range(4)], at)
    again = candidates(frame([event(0, at, lsn=1_000, occurred_at=START - timedelta(seconds=1))]), HORIZONS, ())
    stranger = again.with_columns(pl.lit(int.from_bytes(identity(7)[:8], "little"), pl.UInt64).alias("high"))
    assert index.find_repeats(again).rows() == [(1_000, 1, True)]
    reads = journal.reads
    for _ in range(3):
        assert index.find_repeats(again).rows() == [(1_000, 1, True)]
        assert index.find_repeats(stranger).is_empty()
    assert journal.reads == reads
