"""Whatever the OpenAPI document allows a client to send, and whatever it does not, is no error of the server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, Verbosity, given, settings
from hypothesis import strategies as st

from api.openapi import document
from metering.api_keys import Scope
from monitoring.metrics import ApiRoute
from tests.api.serving import Server, serving, start_ingestion
from tests.api.test_asking import fill, reads
from tests.conftest import fresh_database
from tests.database_rows import write

schemathesis: Any = pytest.importorskip("schemathesis")

DOCUMENT = json.loads(json.dumps(document()))
OPERATIONS = {
    f"{operation.method.upper()} {operation.path}": operation
    for operation in (found.ok() for found in schemathesis.openapi.from_dict(DOCUMENT).get_all_operations())
    if operation.path != ApiRoute.WINDOW_STREAM.value  # it does not end
}
IN_CI, LONG = 4, 170
"""Of each operation, of valid requests and of others; in all more than 100, and more than 5,000."""
KNOWN: dict[str, Any] = {
    "slug": "requests",
    "source": "gw",
    "id": "r-acme",
    "name": "accounts",
    "endpoint": "we_0123456789ab",
    "number": 1,
}
"""Half of the paths name what there is."""


@pytest.fixture(scope="module")
def reading(bootstrap: str, postgres_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with fresh_database(postgres_url) as database:
        fill(database)
        endpoint = {"endpoint": KNOWN["endpoint"], "url": "https://example.com/", "changed_by": "test"}
        write(database, "webhook_endpoints", {**endpoint, "events": ["weir.straggler.held"]})
        start_ingestion(database)
        with serving(bootstrap, database, tables=str(tmp_path_factory.mktemp("tables"))) as running:
            yield running


@pytest.fixture(scope="module")
def key(reading: Server) -> str:
    return reads(reading, scopes=(Scope.READ, Scope.INGEST, Scope.WEBHOOKS))


@pytest.mark.parametrize("examples", [IN_CI, pytest.param(LONG, marks=pytest.mark.long)])
@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("name", OPERATIONS)
def test_no_request_is_an_error_of_the_server(reading: Server, key: str, name: str, mode: Any, examples: int) -> None:
    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],
        verbosity=Verbosity.quiet,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=OPERATIONS[name].as_strategy(generation_mode=mode), is_known=st.booleans())
    def send(case: Any, is_known: bool) -> None:
        if is_known:
            case.path_parameters.update({part: KNOWN[part] for part in case.path_parameters})
        case.headers.update({"Authorization": f"Bearer {key}"})
        answer = case.call(base_url=f"http://127.0.0.1:{reading.port}", timeout=30)
        assert answer.status_code < 500, (answer.status_code, answer.request.method, answer.request.url, answer.text)

    send()
