"""What ingestion may be told, and which sources a pattern means."""

from __future__ import annotations

import re
from datetime import timedelta
from fnmatch import fnmatchcase
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from jobs.ingestion.config import IngestionConfig
from jobs.ingestion.rules import RFC3339, glob_expression
from metering.vocabulary import Reason
from tests.specifications.clock import accept_window

patterns = st.text("a*?.+(", min_size=1, max_size=8)
sources = st.text("a.+(\nb", max_size=8)


def _matches(texts: list[str], source: str) -> bool:
    return re.search(glob_expression(texts), source) is not None


@given(st.lists(patterns, max_size=3), sources)
def test_differential_patterns_match_as_in_the_shell(texts: list[str], source: str) -> None:
    assert _matches(texts, source) == any(fnmatchcase(source, text) for text in texts)


@pytest.mark.parametrize(
    ("pattern", "source", "matches"),
    [
        ("device/*", "device/7", True),
        ("device/*", "my-device/7", False),
        ("device/?", "device/77", False),
        ("device.1", "device-1", False),
        ("*", "", True),
        ("device/[ab]", "device/a", False),
        ("device/[ab]", "device/[ab]", True),
        ("gerät-?", "gerät-1", True),
    ],
)
def test_only_star_and_question_mark_are_special(pattern: str, source: str, matches: bool) -> None:
    assert _matches([pattern], source) is matches


def test_without_patterns_every_source_is_trusted() -> None:
    assert not _matches([], "")
    assert IngestionConfig().clocks.device == ()


def test_the_defaults_are_those_of_the_design() -> None:
    config = IngestionConfig()
    assert accept_window(config).past == timedelta(days=35)
    assert accept_window(config).future == timedelta(minutes=5)
    assert config.clocks.tolerance == timedelta(seconds=2)
    assert (config.trigger_interval_seconds, config.heartbeat_interval_seconds) == (5, 5)
    assert config.min_trigger_interval_seconds == 1
    assert (config.dedupe_horizon_seconds, config.exact_horizon_seconds) == (35 * 86_400, 3_600)
    assert (config.identity_memory_mib, config.topic) == (256, "events")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("trigger_interval_seconds", 0),
        ("min_trigger_interval_seconds", 0.4),
        ("heartbeat_interval_seconds", -1),
        ("heartbeat_interval_seconds", 61),
        ("dedupe_horizon_seconds", 0),
        ("exact_horizon_seconds", 0),
        ("identity_memory_mib", 127),
        ("accept_past_seconds", 59),
        ("accept_future_seconds", 86_401),
        ("topic", "two words"),
        ("topic", ""),
        ("clocks", {"device": "device/*"}),
        ("clocks", {"device": [""]}),
        ("clocks", {"device": ["é" * 257]}),
        ("clocks", {"tolerance_seconds": -1}),
        ("clocks", {"gateway": []}),
        ("horizon", 3_600),
    ],
)
def test_a_wrong_configuration_is_refused_by_the_name_of_its_field(field: str, value: Any) -> None:
    with pytest.raises(ValidationError) as refused:
        IngestionConfig.model_validate({field: value})
    assert refused.value.errors()[0]["loc"][0] == field


def test_the_exact_horizon_is_never_longer_than_the_whole_one() -> None:
    horizons = IngestionConfig(dedupe_horizon_seconds=60).horizons
    assert horizons.exact == horizons.whole == timedelta(seconds=60)


def test_a_configuration_cannot_change() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        IngestionConfig().topic = "other"


def test_reasons_are_labels_of_metrics() -> None:
    assert all(re.fullmatch(r"[a-z0-9]+(_[a-z0-9]+)*", reason) for reason in Reason)


@pytest.mark.parametrize(
    ("text", "is_time"),
    [
        ("2026-07-01T12:00:00Z", True),
        ("2026-07-01t12:00:00.123456789z", True),
        ("2026-07-01T12:00:00-00:00", True),
        ("2026-07-01T12:00:00", False),
        ("2026-07-01T12:00Z", False),
        ("2026-07-01T12:00:00.Z", False),
        ("2026-07-01T12:00:00+0530", False),
        ("2026-07-01T12:00:00Z\n", False),
        ("٢٠٢٦-07-01T12:00:00Z", False),
    ],
)
def test_a_time_has_an_explicit_offset(text: str, is_time: bool) -> None:
    assert (re.fullmatch(RFC3339, text) is not None) is is_time
