"""A configuration that another version has stored is read as far as it is known, where nothing is billed by it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from api.validation import Validator
from jobs.billing.config import BillingConfig
from jobs.ingestion.config import IngestionConfig
from jobs.runtime.errors import Refused
from jobs.runtime.stored_config import parse_stored_config
from jobs.settings.known_part import known_part
from jobs.settings.views import ViewConfig, WindowsConfig

VIEW: dict[str, Any] = {
    "of": "outcomes",
    "by": ["model"],
    "measures": {"requests": "count", "slow": {"top": "user_id"}},
}
LATER = st.dictionaries(st.text(min_size=1).filter(lambda name: name not in ViewConfig.model_fields), st.integers())


@given(LATER)
def test_keys_of_a_later_version_are_left_out_and_named(later: dict[str, int]) -> None:
    known, left_out = known_part(ViewConfig, {**VIEW, **later})
    assert known == ViewConfig.model_validate(VIEW)
    assert sorted(left_out) == sorted(later)


def test_keys_within_others_are_left_out_as_well() -> None:
    document = {"hop": {"size": "PT5M", "every": "PT1M", "offset": "PT10S"}}
    assert known_part(WindowsConfig, document)[1] == ["hop.offset"]
    assert document["hop"]["offset"] == "PT10S"


@pytest.mark.parametrize("document", [{**VIEW, "of": "sessions", "later": 1}, {"later": 1}, [], "view"])
def test_other_mistakes_are_refused_as_before(document: Any) -> None:
    with pytest.raises(ValidationError):
        known_part(ViewConfig, document)


def test_an_older_api_validates_by_what_a_newer_ingestion_has_stored() -> None:
    stored = {**IngestionConfig(topic="usage").model_dump(mode="json"), "erasure_keys": ["k"], "later": {"a": 1}}
    validator = Validator()
    validator.use(stored)
    assert (validator.is_ready, validator.topics) == (True, ("usage",))


def test_what_bills_or_corrects_refuses_keys_that_it_does_not_know() -> None:
    stored = {**BillingConfig().model_dump(mode="json"), "later": 1}
    with pytest.raises(Refused, match="later is not a known field"):
        parse_stored_config("billing", BillingConfig, stored)
