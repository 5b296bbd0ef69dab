"""On a cluster the overview tells what Kubernetes says of each application, by the official client."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from kubernetes.client import ApiClient, Configuration, CustomObjectsApi

from dashboard.queries import cluster
from tests.dashboard.conftest import Pages, texts

PATH = "/apis/sparkoperator.k8s.io/v1beta2/namespaces/metering/sparkapplications"
STATUS = {
    "applicationState": {"state": "PENDING_RERUN", "errorMessage": "driver pod was deleted"},
    "executionAttempts": 3,
    "submissionAttempts": 1,
    "driverInfo": {"podName": "weir-joins-driver"},
}
ITEMS: list[dict[str, Any]] = [
    {"metadata": {"name": "prod-weir-joins"}, "status": STATUS},
    {"metadata": {"name": "prod-weir-billing"}, "status": {"applicationState": {"state": "RUNNING"}}},
    {"metadata": {"name": "prod-weir-ingestion"}},
]
LABELLED = [
    {**item, "metadata": {**item["metadata"], "labels": {cluster.RELEASE_LABEL: release}}}
    for item, release in zip(ITEMS, ("another", "prod", "prod"), strict=True)
]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """The paths that the API server was asked for."""
    paths: list[str] = []
    items: list[dict[str, Any]] = getattr(request, "param", ITEMS)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_response(200 if self.path == PATH else 403)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps({"items": items}).encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the name is given
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    api = CustomObjectsApi(ApiClient(Configuration(host=f"http://127.0.0.1:{server.server_port}")))
    monkeypatch.setattr(cluster, "_apis", [api])
    yield paths
    server.shutdown()
    server.server_close()


def test_state_restarts_and_reason_stand_in_the_applications_card(
    open_page: Pages, seeded: str, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEIR_NAMESPACE", "metering")
    shown = texts(open_page("overview"))
    assert "Kubernetes: pending_rerun, 2 restarts driver pod was deleted" in shown
    assert "Kubernetes: running, 0 restarts" in shown
    assert "Kubernetes: new, 0 restarts" in shown
    assert asked == [PATH]


@pytest.mark.parametrize("asked", [LABELLED], indirect=True, ids=["labelled"])
def test_applications_of_another_release_in_the_namespace_are_not_shown(
    open_page: Pages, seeded: str, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEIR_NAMESPACE", "metering")
    monkeypatch.setenv("WEIR_RELEASE", "prod")
    shown = texts(open_page("overview"))
    assert "pending_rerun" not in shown
    assert "Kubernetes: running, 0 restarts" in shown


def test_a_cluster_that_denies_access_hides_nothing_else(
    open_page: Pages, seeded: str, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEIR_NAMESPACE", "another")
    page = open_page("overview")
    assert "Kubernetes" not in texts(page)
    assert "live" in page.markdown[0].value


def test_without_a_namespace_kubernetes_is_not_queried(open_page: Pages, seeded: str, asked: list[str]) -> None:
    open_page("overview")
    assert asked == []
