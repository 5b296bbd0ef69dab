"""The guide's table of OpenTelemetry's names is what the API reads: those of today and of the releases before."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes

from api.span_usage import CACHED, OPERATIONS, QUANTITIES, SUMMARIES, TEXTS
from metering.contracts.shipped import shipped
from tests.rules.test_otlp import CALL, data

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "send-events.md"
NAME = re.compile(r"`([a-z_.]+)`")
_BEFORE = ("input_tokens", "output_tokens", "cache_read.input_tokens", "cache_creation.input_tokens")
RELEASES: Mapping[str, tuple[str, ...]] = {
    "before 1.27": ("prompt_tokens", "completion_tokens"),
    "1.40": _BEFORE,
    "1.43": (*_BEFORE, "reasoning.output_tokens"),
    "1.44": (*_BEFORE, "reasoning.output_tokens"),
    "today": (
        *("input_tokens", "output_tokens", "cache_read.input_tokens", "cache_write.input_tokens"),
        *("reasoning.output_tokens", "audio.input_tokens", "audio.output_tokens", "image.input_tokens"),
        "image.output_tokens",
    ),
}
"""What follows `gen_ai.usage.` in the specification of a release."""


def table() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Weir's field, and the names that the page has for it, the current ones first."""
    _, section = PAGE.read_text().split("## From OpenTelemetry\n")
    for line in section.split("\n## ")[0].splitlines():
        if line.startswith("| `"):
            current, earlier, field = line.strip("| ").split(" | ") if " | | " not in line else _two(line)
            yield NAME.findall(field)[0], (*NAME.findall(current), *NAME.findall(earlier))


def _two(line: str) -> tuple[str, str, str]:
    current, field = line.strip("| ").split(" | | ")
    return current, "", field


def test_the_guides_table_has_each_name_that_the_api_reads_and_no_other() -> None:
    assert dict(table()) == {**TEXTS, **QUANTITIES}
    section = PAGE.read_text().split("## From OpenTelemetry\n")[1]
    assert "`gen_ai.usage.audio.cache_read.input_tokens` from the audio, and the same of images" in section
    assert {name for names in CACHED.values() for name in names} == {
        "gen_ai.usage.audio.cache_read.input_tokens",
        "gen_ai.usage.image.cache_read.input_tokens",
        "gen_ai.usage.details.cache_audio_read_tokens",
        "gen_ai.usage.cache_audio_read_tokens",
    }


@pytest.mark.parametrize(("name", "column"), [(name, column) for column, names in QUANTITIES.items() for name in names])
def test_a_span_that_reports_a_name_of_the_table_reports_its_field(name: str, column: str) -> None:
    """Else a part would be billed at the price of the whole."""
    without = {key: value for key, value in CALL.items() if not key.startswith("gen_ai.usage.")}
    reported = {key: value for key, value in data({**without, name: 77}).items() if value == 77}
    assert reported == {column: 77}


def test_each_field_of_the_table_is_one_of_the_contract() -> None:
    properties = shipped()["ai.inference.usage.v1"]["properties"]["data"]["properties"]
    assert {field for field, _ in table()} <= properties.keys()


@pytest.mark.parametrize("release", RELEASES)
def test_the_table_has_all_counts_of_tokens_of_a_release(release: str) -> None:
    named = {name for _, names in table() for name in names}
    assert {f"gen_ai.usage.{name}" for name in RELEASES[release]} <= named


def test_all_names_and_operations_in_opentelemetrys_own_package_are_known() -> None:
    """So an update of the package tells of a name that spans would report in vain."""
    registry = [value for value in vars(gen_ai_attributes).values() if isinstance(value, str)]
    counts = {value for value in registry if value.startswith("gen_ai.usage.")}
    assert len(counts) >= 7
    assert counts <= {name for names in QUANTITIES.values() for name in names}
    operations = {each.value for each in gen_ai_attributes.GenAiOperationNameValues}
    assert operations <= OPERATIONS | SUMMARIES
