"""Kong's plugin posts two events of a call in one request: both are taken, and nothing is added when it sends again."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
import yaml

from jobs.ingestion.config import IngestionConfig
from jobs.ingestion.documents import validated
from metering.api_keys import Scope
from monitoring.metrics import ApiRoute
from tests.api.serving import Server, serving, start_ingestion
from tests.api.test_events_in import V3, refused, usable
from tests.conftest import fresh_database
from tests.pages import DOCS, ROOT, blocks_in

PAGE = DOCS / "how-to/usual-traffic.md"
(PART,) = re.findall(r"^## One event per token type\n(.*?)^## ", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
CONTRACT, EVENTS = (block.text for block in blocks_in(PART, PAGE.name) if block.language == "json")
BATCH = "application/cloudevents-batch+json"


@pytest.fixture(scope="module")
def with_contract(bootstrap: str, postgres_url: str) -> Iterator[Server]:
    """An API where ingestion has the contract of the guide."""
    with fresh_database(postgres_url) as database:
        start_ingestion(database, contracts=[json.loads(CONTRACT)])
        with serving(bootstrap, database) as running:
            yield running


def test_both_events_of_a_call_are_taken_and_bill_its_tokens(with_contract: Server) -> None:
    key = usable(with_contract, scopes=[Scope.INGEST], accounts=["acme"], sources=["kong/*"])
    lines = [line.encode() for line in EVENTS.splitlines()]
    for _ in range(2):
        answer = with_contract.post(V3, b"[" + b",".join(lines) + b"]", key, BATCH)
        assert (answer.status, answer.body) == (202, b"")
    sent = [value for _, value, _ in with_contract.records() if value in lines]
    assert sorted(sent) == sorted([*lines, *lines])
    rows = validated(sent, IngestionConfig(contracts=(json.loads(CONTRACT),)).validator(), 1 << 20)
    assert rows["reason"].to_list() == [None] * 4, rows["violation"].to_list()
    assert len(set(rows["identity"])) == 2
    assert set(rows.select("token_type", "tokens").rows()) == {("request", 1200), ("response", 300)}
    other = lines[0].replace(b'"type":"request"', b'"type":"total"')
    refused(with_contract.post(V3, b"[" + b",".join([other, lines[1]]) + b"]", key, BATCH), 400, "/data/type")


def test_the_example_names_routes_that_there_are() -> None:
    shown = yaml.safe_load((ROOT / "examples" / "kong.yaml").read_text("utf-8"))
    configs = {plugin["name"]: plugin["config"] for plugin in shown["plugins"]}
    paths = {
        configs["metering-and-billing"]["ingest_endpoint"]: ApiRoute.OPENMETER_V3,
        configs["entitlement-enforcement"]["entitlement_access_endpoint"]: ApiRoute.ENTITLEMENT_ACCESS,
    }
    assert [urlsplit(url).path for url in paths] == [route.value for route in paths.values()]
