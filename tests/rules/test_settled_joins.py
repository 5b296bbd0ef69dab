"""What joins' configuration leaves open is as the rules of usage have it: a restart or an upgrade changes no bill."""

from __future__ import annotations

import pytest

from jobs.ingestion.config import IngestionConfig
from jobs.joins.config import JoinsConfig
from jobs.runtime.effective_rules import EffectiveRules
from metering.meters import DETAILS

OF_THE_RELEASE_BEFORE = EffectiveRules(1, {"completion_timeout_seconds": 600, "meters": None})
BILLED = {"status": ["completed", "cancelled"]}


def test_a_new_installation_bills_the_best_report_and_no_request_that_failed() -> None:
    settled = JoinsConfig().settled((), is_new=True)
    assert settled.best_report_bills is True
    assert settled.meters["requests"].where == BILLED
    assert {name: meter.where for name, meter in settled.meters.items() if name != "requests"} == dict.fromkeys(
        ("input_tokens", "output_tokens", "cached_tokens", *(part.name for part in DETAILS))
    )


@pytest.mark.parametrize("history", [(), (OF_THE_RELEASE_BEFORE,)])
def test_an_upgraded_installation_bills_as_before_until_it_is_configured_otherwise(
    history: tuple[EffectiveRules, ...],
) -> None:
    settled = JoinsConfig().settled(history, is_new=False)
    assert settled.best_report_bills is False
    assert settled.deciding == JoinsConfig().deciding
    turned_on = JoinsConfig(best_report_bills=True).settled(history, is_new=False)
    assert turned_on.best_report_bills is True


@pytest.mark.parametrize("is_new", [True, False])
@pytest.mark.parametrize("config", [JoinsConfig(), IngestionConfig()])
def test_what_was_settled_stays_at_each_start(config: JoinsConfig | IngestionConfig, *, is_new: bool) -> None:
    settled = config.settled((), is_new=is_new)
    for _ in range(2):
        again = config.settled((EffectiveRules(1, settled.deciding),), is_new=False)
        assert again.deciding == settled.deciding
        settled = again


def test_a_given_setting_wins_over_the_stored_one() -> None:
    meters = {"requests": {"unit": "request", "count": "outcomes"}}
    given = JoinsConfig.model_validate({"meters": meters, "best_report_bills": False})
    assert given.settled((), is_new=True) == given
    ranked = EffectiveRules(1, JoinsConfig().settled((), is_new=True).deciding)
    assert given.settled((ranked,), is_new=False) == given
