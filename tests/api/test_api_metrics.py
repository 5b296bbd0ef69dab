"""What the API counts, as whoever scrapes it reads it: a process of its own, asked over HTTP on both of its ports."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from api.__main__ import HOST_VARIABLE, METRICS_PORT_VARIABLE, PORT_VARIABLE
from api.request_metrics import status_class
from deployment.stack import KAFKA_VARIABLE, POSTGRES_VARIABLE
from laptop.ports import LOOPBACK, free_ports
from monitoring.metrics import ApiStatus
from tests.api.serving import Server, start_ingestion
from tests.api.test_events_in import OPENMETER, OWN, V3, encoded, event, usable
from tests.conftest import fresh_database
from tests.waiting import wait_until

INVALID = {"request_id": "r", "model": "m", "status": "completed", "input_tokens": -1}


@dataclass(frozen=True)
class Scraped(Server):
    """A running API, and where its metrics are."""

    metrics_port: int

    def samples(self) -> dict[str, float]:
        """Every sample of the API, by name and labels."""
        with urlopen(f"http://{LOOPBACK}:{self.metrics_port}/metrics", timeout=60) as answer:
            families = text_string_to_metric_families(answer.read().decode())
        samples = (sample for family in families for sample in family.samples)
        return {named(each.name, **each.labels): each.value for each in samples if each.name.startswith("weir_api")}


@pytest.fixture(scope="module")
def scraped(bootstrap: str, postgres_url: str) -> Iterator[Scraped]:
    with fresh_database(postgres_url) as database:
        start_ingestion(database)
        port, metrics_port = free_ports(2)
        environment = {
            **os.environ,
            KAFKA_VARIABLE: bootstrap,
            POSTGRES_VARIABLE: database,
            HOST_VARIABLE: LOOPBACK,
            PORT_VARIABLE: str(port),
            METRICS_PORT_VARIABLE: str(metrics_port),
        }
        with subprocess.Popen([sys.executable, "-m", "api"], env=environment) as process:
            running = Scraped(port, bootstrap, database, metrics_port)
            try:
                wait_until(lambda: is_ready(running), "the API being ready", 60, every_seconds=0.2)
                yield running
            finally:
                process.terminate()


@pytest.fixture(scope="module")
def key(scraped: Scraped) -> str:
    return usable(scraped)


def is_ready(server: Server) -> bool:
    try:
        return server.request("GET", "/health/ready", None, {}).status == 200
    except OSError:
        return False


def named(name: str, **labels: str) -> str:
    return name + "{" + ",".join(f'{label}="{value}"' for label, value in sorted(labels.items())) + "}"


def requests(route: str, status: str) -> str:
    return named("weir_api_requests_total", route=route, status=status)


def events(result: str, reason: str = "") -> str:
    return named("weir_api_events_total", result=result, reason=reason)


def risen(before: Mapping[str, float], after: Mapping[str, float], counter: str) -> dict[str, float]:
    """By how much the series of a counter have grown, but for those that have not."""
    return {
        name: value - before[name]
        for name, value in after.items()
        if name.startswith(counter) and value != before[name]
    }


def expect_risen(scraped: Scraped, before: Mapping[str, float], counter: str, expected: Mapping[str, float]) -> None:
    """A request is counted once its answer was handed over: whoever got it may be a moment too early."""
    with suppress(AssertionError):
        wait_until(lambda: risen(before, scraped.samples(), counter) == expected, counter, 60, every_seconds=0.05)
    assert risen(before, scraped.samples(), counter) == expected


def test_metrics_have_a_port_of_their_own_and_are_not_where_strangers_post(scraped: Scraped) -> None:
    assert scraped.request("GET", "/metrics", None, {}).status == 404
    assert requests(OWN, "2xx") in scraped.samples()


@dataclass(frozen=True)
class Post:
    """A request, and as what it is counted."""

    path: str
    body: bytes
    route: str
    status: str
    has_key: bool = True


@pytest.mark.parametrize(
    "post",
    [
        Post(OPENMETER, encoded(event()), OPENMETER, "2xx"),
        Post(V3, encoded(event()), V3, "2xx"),
        Post(OWN, encoded([event(), event()]), OWN, "2xx"),
        Post(OWN, b"", OWN, "4xx"),
        Post(OPENMETER, encoded(event()), OPENMETER, "4xx", has_key=False),
        Post(f"{OWN}/", b"{", OWN, "2xx"),
        Post("/v1/nothing", b"{", "other", "4xx"),
    ],
    ids=lambda post: f"{post.path} {post.status}",
)
def test_a_request_is_counted_once_by_its_route_and_the_class_of_its_status(
    scraped: Scraped, key: str, post: Post
) -> None:
    before = scraped.samples()
    scraped.post(post.path, post.body, key if post.has_key else None)
    expect_risen(scraped, before, "weir_api_requests_total", {requests(post.route, post.status): 1})
    counted = named("weir_api_request_duration_seconds_count", route=post.route)
    expect_risen(scraped, before, "weir_api_request_duration_seconds_count", {counted: 1})


def test_unknown_paths_and_methods_make_no_new_series(scraped: Scraped) -> None:
    before = scraped.samples()
    asked = [("GET", OWN), ("BREW", OWN), ("BREW", OPENMETER), *(("GET", f"/{number}") for number in range(20))]
    for method, path in asked:
        assert scraped.request(method, path, None, {}).status in (404, 405)
    expect_risen(scraped, before, "weir_api_requests_total", {requests("other", "4xx"): len(asked)})
    assert scraped.samples().keys() == before.keys()


def test_probes_are_not_counted(scraped: Scraped) -> None:
    before = scraped.samples()
    assert is_ready(scraped)
    assert scraped.request("GET", "/health/live", None, {}).status == 200
    scraped.post(OWN, b"", None)
    expect_risen(scraped, before, "weir_api_requests_total", {requests(OWN, "4xx"): 1})


def test_events_are_counted_as_the_answer_says(scraped: Scraped, key: str) -> None:
    before = scraped.samples()
    good, bad = event(), event(data=INVALID)
    answer = scraped.post(OWN, encoded([bad, good, bad, good, good]), key)
    (reason,) = {each["reason"] for each in answer.json["rejected"]}
    assert risen(before, scraped.samples(), "weir_api_events_total") == {
        events("accepted"): answer.json["accepted"],
        events("rejected", reason): len(answer.json["rejected"]),
    }


@pytest.mark.parametrize("path", [OPENMETER, V3])
def test_of_a_request_that_takes_all_or_none_no_event_is_accepted_beside_an_invalid_one(
    scraped: Scraped, key: str, path: str
) -> None:
    before = scraped.samples()
    assert scraped.post(path, encoded([event(), event(data=INVALID)]), key).status == 400
    assert risen(before, scraped.samples(), "weir_api_events_total") == {events("rejected", "invalid_tokens"): 1}
    before = scraped.samples()
    assert scraped.post(path, encoded([event(), event()]), key).status in (202, 204)
    assert risen(before, scraped.samples(), "weir_api_events_total") == {events("accepted"): 2}


def test_received_bytes_count_until_their_request_ends(scraped: Scraped, key: str) -> None:
    held = named("weir_api_body_bytes")
    assert scraped.samples()[held] == 0
    with socket.create_connection((LOOPBACK, scraped.port), timeout=30) as client:
        head = f"POST {OWN} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {key}\r\nContent-Length: 1000\r\n\r\n"
        client.sendall(head.encode() + b"[" * 400)
        wait_until(lambda: scraped.samples()[held] == 400, "the half of a body", 60, every_seconds=0.05)
    wait_until(lambda: scraped.samples()[held] == 0, "the end of its request", 60, every_seconds=0.05)


def test_a_port_of_metrics_that_is_taken_ends_the_api_with_a_sentence(scraped: Scraped) -> None:
    environment = {
        **os.environ,
        KAFKA_VARIABLE: scraped.bootstrap,
        POSTGRES_VARIABLE: scraped.database,
        PORT_VARIABLE: str(free_ports(1)[0]),
        METRICS_PORT_VARIABLE: str(scraped.metrics_port),
    }
    ended = subprocess.run(
        [sys.executable, "-m", "api"], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert f"Metrics cannot be served at {LOOPBACK}:{scraped.metrics_port}" in ended.stderr


def test_too_many_requests_are_a_class_of_their_own() -> None:
    classes = {status: status_class(status).value for status in (200, 204, 307, 400, 428, 429, 431, 500, 503)}
    assert {status for status, found in classes.items() if found == ApiStatus.TOO_MANY} == {429}
    assert all(found == f"{status // 100}xx" for status, found in classes.items() if status != 429)
