"""An event that is sent again is found, whatever rules it was accepted by the first time."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from jobs.ingestion.config import IngestionConfig
from jobs.ingestion.config_groups import Clocks
from jobs.ingestion.earlier_rules import comparable_since, looked_for
from jobs.ingestion.repeats import candidates, entries, repeats
from jobs.runtime.effective_rules import History, Rules, extended
from tests.corpus.contracts import GPU
from tests.rules.test_identity_index import START, event, frame
from tests.specifications.clock import Acceptance, accept_window

DEVICES = Clocks(device=("gatew?y",))
configs = st.builds(
    IngestionConfig,
    accept_future_seconds=st.sampled_from([0, 300, 86_400]),
    exact_horizon_seconds=st.sampled_from([60, 3_600, 86_400]),
    clocks=st.sampled_from([Clocks(), DEVICES]),
)
hours = st.floats(-30, 30).map(lambda number: timedelta(hours=number))


def is_accepted(row: dict[str, Any], config: IngestionConfig) -> bool:
    """A device's clock is corrected, so any `time` is accepted."""
    if config.clocks == DEVICES:
        return True
    return accept_window(config).acceptance(row["occurred_at"], row["received_at"]) is Acceptance.ACCEPTED


@given(st.lists(configs, min_size=1, max_size=3), configs, hours, st.floats(0, 34 * 24))
def test_no_change_of_rules_hides_a_repeat(
    before: list[IngestionConfig], now: IngestionConfig, ahead: timedelta, hours_later: float
) -> None:
    first = event(2, START, lsn=1, occurred_at=START + ahead)
    again = {**first, "received_at": START + timedelta(hours=hours_later), "lsn": 2}
    assume(is_accepted(first, before[0]) and is_accepted(again, now))
    history: History = ()
    for position, config in enumerate(before, start=1):
        history = extended(history, position, config.deciding)
    found = repeats(candidates(frame([again]), *looked_for(now, history)), entries(frame([first])))
    assert found.rows() == [(2, 1, True)]


def test_rules_of_a_later_release_are_read_too() -> None:
    now = IngestionConfig()
    later = {**IngestionConfig(accept_future_seconds=600).deciding, "what_a_later_release_decides_by": 1}
    assert looked_for(now, extended((), 1, later))[0].early == timedelta(seconds=600)


PLAIN, WITH_GPU = IngestionConfig().deciding, IngestionConfig(contracts=(GPU,)).deciding
OTHER_WINDOW = IngestionConfig(accept_past_seconds=60).deciding
OF_AN_EARLIER_RELEASE = {name: rule for name, rule in PLAIN.items() if name not in ("contracts", "digest")}


@pytest.mark.parametrize(
    ("held", "since"),
    [
        ([], 100),
        ([PLAIN], 1),
        ([WITH_GPU], 100),
        ([PLAIN, OTHER_WINDOW], 1),
        ([PLAIN, WITH_GPU, PLAIN], 3),
        ([OF_AN_EARLIER_RELEASE, PLAIN, OTHER_WINDOW], 2),
        ([OF_AN_EARLIER_RELEASE], 100),
        ([{**PLAIN, "digest": 1}, PLAIN], 2),
    ],
)
def test_digests_are_compared_only_under_the_current_contracts_and_version(held: list[Rules], since: int) -> None:
    history: History = ()
    for position, rules in enumerate(held, start=1):
        history = extended(history, position, rules)
    assert comparable_since(PLAIN, history, 100) == since
