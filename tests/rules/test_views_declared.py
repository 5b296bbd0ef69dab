"""`views` and `windows` of the configuration: what is taken, and the sentence for each mistake."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jobs.analytics.config import BUSY_ROWS, AnalyticsConfig
from jobs.settings.views import MAX_SERIES
from jobs.stack import load_stack_config
from metering.views import Aggregate, view_of

MEASURES: dict[str, Any] = {
    "requests": "count",
    "errors": {"count": {"where": {"status": ["error"]}}},
    "users": {"distinct": "user_id"},
    "latency_ms": {"percentiles": "latency_ms"},
    "tokens": {"sum": {"of": "output_tokens", "where": {"cached": False}}},
    "busiest": {"top": {"of": "user_id", "k": 3}},
    "gap_ms": "gaps",
}
HEALTH = {"of": "outcomes", "by": ["model", "region"], "measures": MEASURES}


def loaded(tmp_path: Path, **content: Any) -> Any:
    file = tmp_path / "weir.yaml"
    file.write_text(json.dumps(content))
    return load_stack_config(file)


def test_views_or_watches_start_analytics_and_nothing_else_does(tmp_path: Path) -> None:
    always = ["ingestion", "sessionization", "joins", "billing"]
    assert [name for name, _ in loaded(tmp_path).items()] == always
    assert [name for name, _ in loaded(tmp_path, windows={"slide": "PT1H"}, views={}).items()] == always
    assert [name for name, _ in loaded(tmp_path, views={"health": HEALTH}).items()] == [*always, "analytics"]
    assert [name for name, _ in loaded(tmp_path, watches=True).items()] == [*always, "analytics"]
    assert [name for name, _ in loaded(tmp_path, watches=False).items()] == always


def test_a_view_keeps_its_keys_and_measures_in_order_and_reads_their_columns(tmp_path: Path) -> None:
    [view] = loaded(tmp_path, views={"health": HEALTH}).jobs.analytics.declared_views
    assert view.by == ("model", "region")
    assert [measure.name for measure in view.measures] == [*MEASURES]
    assert view.measures[5].k == 3
    assert view.columns == ("cached", "latency_ms", "model", "output_tokens", "region", "status", "user_id")
    assert view_of("health", json.loads(json.dumps(view.definition))) == view


def test_a_definition_is_the_same_in_any_order_of_measures_and_another_with_any_other_word(tmp_path: Path) -> None:
    def version(**changed: Any) -> str:
        [view] = loaded(tmp_path, views={"health": {**HEALTH, **changed}}).jobs.analytics.declared_views
        return str(view.version)

    assert version(measures=dict(reversed(MEASURES.items()))) == version()
    others = [
        version(by=["region", "model"]),
        version(measures={**MEASURES, "users": {"distinct": "api_key_id"}}),
        version(measures={**MEASURES, "busiest": {"top": {"of": "user_id", "k": 4}}}),
        version(measures={**MEASURES, "errors": {"count": {"where": {"status": ["cancelled"]}}}}),
    ]
    assert len({version(), *others}) == 5


def test_what_a_driver_stores_is_read_back_as_it_was(tmp_path: Path) -> None:
    given = loaded(
        tmp_path, views={"health": HEALTH}, windows={"hop": {"size": "PT5M", "every": "PT1M"}}
    ).jobs.analytics
    assert AnalyticsConfig.model_validate(json.loads(json.dumps(given.model_dump(mode="json")))) == given


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"views": {"v": {**HEALTH, "by": ["regio"]}}}, r"views\.v\.by names regio, but there it can name account, "),
        ({"views": {"v": {**HEALTH, "by": ["output_tokens"]}}}, r"views\.v\.by names output_tokens"),
        ({"views": {"v": {**HEALTH, "measures": {"n": {"sum": "status"}}}}}, r"measures\.n names status.*numbers"),
        (
            {"views": {"v": {**HEALTH, "measures": {"n": "cont"}}}},
            r"views\.v\.measures\.n is 'cont': a measure is `count`, `gaps`, or",
        ),
        ({"views": {"v": {**HEALTH, "measures": {"n": {}}}}}, "a measure is exactly one of count, sum, min, max"),
        (
            {"views": {"v": {**HEALTH, "measures": {"n": {"sum": "output_tokens", "max": "output_tokens"}}}}},
            "a measure is exactly one of",
        ),
        ({"views": {"v": {**HEALTH, "measures": {"model": "count"}}}}, "model would be a column twice"),
        ({"views": {"v": {**HEALTH, "measures": {"window_end": "count"}}}}, "window_end would be a column twice"),
        ({"views": {"v": {**HEALTH, "of": "events"}}}, r"views\.v\.of is 'events': must be 'outcomes'"),
        ({"views": {"V": HEALTH}}, r"views\.V"),
        ({"windows": {"slide": "PT90S"}}, r"windows\.slide is 'PT90S': PT90S is not whole minutes"),
        ({"windows": {"hop": {"size": "PT1M", "every": "PT2M"}}}, "every is PT2M, but must be at most size"),
        (
            {"views": {"v": HEALTH}, "jobs": {"analytics": {"views": {}}}},
            "views and jobs.analytics.views are both given",
        ),
    ],
)
def test_a_mistake_is_refused_with_its_place_and_what_is_allowed(
    tmp_path: Path, content: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        loaded(tmp_path, **content)


def test_every_aggregate_can_be_declared(tmp_path: Path) -> None:
    columns = {of: "latency_ms" for of in Aggregate if of not in (Aggregate.COUNT, Aggregate.GAPS)}
    measures: dict[str, Any] = {f"of_{of}": {of.value: column} for of, column in columns.items()}
    measures |= {"all": "count", "some": {"gaps": {"where": {"status": ["error"]}}}}
    [view] = loaded(tmp_path, views={"v": {"of": "outcomes", "measures": measures}}).jobs.analytics.declared_views
    assert {measure.aggregate for measure in view.measures} == set(Aggregate)


def with_gauges(*tops: int) -> dict[str, Any]:
    """Views of ten series for each key: four percentiles, and a top that is none."""
    measures = {f"m{number}": "count" for number in range(6)} | {
        "ms": {"percentiles": "latency_ms"},
        "busiest": {"top": "user_id"},
    }
    view = {"of": "outcomes", "by": ["model"], "measures": measures}
    return {f"v{number}": {**view, "gauges": {"top": top}} for number, top in enumerate(tops)}


def test_as_many_series_as_are_allowed_are_exposed_and_one_key_more_is_refused(tmp_path: Path) -> None:
    assert loaded(tmp_path, views=with_gauges(100, 100)).jobs.analytics.views["v0"].series == MAX_SERIES / 2
    with pytest.raises(ValueError, match=r"would be up to 2,010 series, but at most 2,000 are allowed: lower their"):
        loaded(tmp_path, views=with_gauges(100, 100, 1))
    with pytest.raises(ValueError, match=r"gauges\.top is 101: must be at most 100"):
        loaded(tmp_path, views=with_gauges(101))


def test_gauges_need_a_number_by_which_keys_are_first(tmp_path: Path) -> None:
    view = {"of": "outcomes", "by": ["model"], "measures": {"users": {"distinct": "user_id"}}, "gauges": {"top": 1}}
    with pytest.raises(ValueError, match="gauges are of the first keys by a count or a sum: give the view one"):
        loaded(tmp_path, views={"health": view})


@pytest.mark.parametrize("key", ["account", "user_id"])
def test_no_gauge_names_a_customer_or_a_person(tmp_path: Path, key: str) -> None:
    view = {"of": "outcomes", "by": ["model", key], "measures": {"requests": "count"}}
    assert loaded(tmp_path, views={"health": view})
    with pytest.raises(ValueError, match=f"which Prometheus would keep: leave {key} out of `by`"):
        loaded(tmp_path, views={"health": {**view, "gauges": {"top": 1}}})


def test_only_a_batch_of_many_outcomes_may_be_followed_later() -> None:
    usual, patient = AnalyticsConfig(), AnalyticsConfig(min_batch_interval_seconds=20)
    assert [usual.batch_interval_seconds(rows) for rows in (0, BUSY_ROWS - 1, BUSY_ROWS)] == [4, 4, 15]
    assert patient.batch_interval_seconds(BUSY_ROWS) == 20, "never earlier than after few"
