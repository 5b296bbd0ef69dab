"""What goes with an outcome into usage: the texts that are configured, exactly as they were sent."""

from __future__ import annotations

import json

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from jobs.ingestion.config import IngestionConfig
from jobs.joins.dimensions import dimensions
from jobs.joins.memory import text_of

TEXTS = st.none() | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


@given(st.lists(st.fixed_dictionaries({"api_key_id": TEXTS, "region": TEXTS, "user_id": TEXTS}), max_size=5))
def test_every_text_is_there_and_what_is_missing_is_not(rows: list[dict[str, str | None]]) -> None:
    sent = pl.DataFrame(rows, schema=dict.fromkeys(("api_key_id", "region", "user_id"), pl.String))
    frame = sent.rename(text_of)
    found = frame.with_columns(dimensions(("user_id", "api_key_id")))["dimensions"].to_list()
    for row, said in zip(rows, found, strict=True):
        wanted = {name: row[name] for name in ("api_key_id", "user_id") if row[name] is not None}
        assert (None if said is None else json.loads(said)) == (wanted or None)
        assert said is None or list(json.loads(said)) == sorted(wanted), "one combination is one text"


def test_without_dimensions_usage_has_none() -> None:
    assert pl.DataFrame({"region": ["eu", "us"]}).with_columns(dimensions(()))["dimensions"].to_list() == [None, None]


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (["a", "b", "c", "d", "e"], "at most 4"),
        (["region", "region"], "region occurs twice"),
        (["request_id"], "request_id cannot be a dimension"),
        (["model"], "model cannot be a dimension"),
        (["plan"], "plan cannot be a dimension"),
        (["day"], "day cannot be a dimension"),
        (["input_tokens"], "input_tokens, which is not a text column of a contract; it can name api_key_id"),
        (["nothing"], "nothing, which is not a text column"),
        (["Region"], "pattern"),
    ],
)
def test_an_invalid_dimension_is_refused_with_the_allowed_values(names: list[str], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        IngestionConfig.model_validate({"dimensions": names})


def test_the_texts_of_weirs_own_contracts_are_dimensions() -> None:
    assert IngestionConfig.model_validate({"dimensions": ["api_key_id", "user_id", "operation", "region"]}).dimensions
