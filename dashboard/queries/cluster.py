"""The applications in Kubernetes: the state and restarts of their SparkApplications, on a cluster only."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from dashboard.backend import Backend, NotConnected, Unavailable

GROUP, VERSION, PLURAL = "sparkoperator.k8s.io", "v1beta2", "sparkapplications"
RELEASE_LABEL = "app.kubernetes.io/instance"
TIMEOUT_SECONDS = 3

_lock = threading.Lock()
_apis: list[Any] = []


@dataclass(frozen=True)
class SparkApplication:
    """One SparkApplication. `restarts` are attempts after the first; `message` says why it failed."""

    name: str
    state: str
    restarts: int
    message: str


def read_spark_applications(backend: Backend) -> tuple[SparkApplication, ...]:
    """Those of the release in the namespace that WEIR_NAMESPACE names, by name; all of them without WEIR_RELEASE."""
    if not backend.settings.namespace:
        raise NotConnected("Not on a cluster: WEIR_NAMESPACE is not set.")
    from kubernetes.client.exceptions import ApiException
    from kubernetes.config.config_exception import ConfigException
    from urllib3.exceptions import HTTPError

    try:
        found = _api().list_namespaced_custom_object(
            GROUP, VERSION, backend.settings.namespace, PLURAL, _request_timeout=TIMEOUT_SECONDS
        )
    except (ApiException, ConfigException, HTTPError, OSError) as error:
        raise Unavailable(f"Kubernetes does not answer: {type(error).__name__}.") from error
    ours = (_application(item) for item in found["items"] if _is_of(backend.settings.release, item))
    return tuple(sorted(ours, key=lambda application: application.name))


def _is_of(release: str, item: dict[str, Any]) -> bool:
    return not release or item["metadata"].get("labels", {}).get(RELEASE_LABEL) == release


def _application(item: dict[str, Any]) -> SparkApplication:
    status = item.get("status", {})
    state = status.get("applicationState", {})
    attempts = max(status.get("executionAttempts", 0), status.get("submissionAttempts", 0))
    return SparkApplication(
        name=item["metadata"]["name"],
        state=state.get("state") or "NEW",
        restarts=max(0, attempts - 1),
        message=state.get("errorMessage", ""),
    )


def _api() -> Any:
    """The client, made once: its configuration reads the pod's own files."""
    from kubernetes import client, config

    with _lock:
        if not _apis:
            config.load_incluster_config()  # type: ignore[no-untyped-call]  # the client has no types
            _apis.append(client.CustomObjectsApi())
        return _apis[0]
