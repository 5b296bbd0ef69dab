"""A real Kubernetes API server with nothing behind it: it validates, admits and authorizes, and no pod ever runs.

Its program is the one of the cluster folder beside the checkout; `helm.py` has that of Helm.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import pyarrow as pa
import pytest

from laptop.ports import LOOPBACK, free_ports
from tests.chart.helm import ARCHIVE, Object
from tests.waiting import wait_until

KUBE = ARCHIVE.with_name("kube.zst")
TOKEN = "of-the-administrator"
PLACES = {
    "Namespace": "api/v1/namespaces",
    "Pod": "api/v1/namespaces/{namespace}/pods",
    "ConfigMap": "api/v1/namespaces/{namespace}/configmaps",
    "Secret": "api/v1/namespaces/{namespace}/secrets",
    "Service": "api/v1/namespaces/{namespace}/services",
    "ServiceAccount": "api/v1/namespaces/{namespace}/serviceaccounts",
    "PersistentVolumeClaim": "api/v1/namespaces/{namespace}/persistentvolumeclaims",
    "Deployment": "apis/apps/v1/namespaces/{namespace}/deployments",
    "StatefulSet": "apis/apps/v1/namespaces/{namespace}/statefulsets",
    "Job": "apis/batch/v1/namespaces/{namespace}/jobs",
    "CronJob": "apis/batch/v1/namespaces/{namespace}/cronjobs",
    "Role": "apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/roles",
    "RoleBinding": "apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings",
    "NetworkPolicy": "apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies",
    "Ingress": "apis/networking.k8s.io/v1/namespaces/{namespace}/ingresses",
    "PodDisruptionBudget": "apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets",
    "HorizontalPodAutoscaler": "apis/autoscaling/v2/namespaces/{namespace}/horizontalpodautoscalers",
    "PriorityClass": "apis/scheduling.k8s.io/v1/priorityclasses",
    "ValidatingAdmissionPolicy": "apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
}
"""Kind → where its objects are; the kinds of operators are not there."""


@dataclass(frozen=True)
class ApiServer:
    """A server that answers."""

    client: httpx.Client

    def ask(
        self, method: str, path: str, body: Object | None = None, *, user: str = "", dry: bool = False
    ) -> httpx.Response:
        """Its answer to an administrator who acts as `user`, if one is given; `dry` changes nothing."""
        headers = {"Impersonate-User": user} if user else {}
        parameters = {"fieldValidation": "Strict", **({"dryRun": "All"} if dry else {})}
        if method == "PATCH":
            headers["Content-Type"] = "application/strategic-merge-patch+json"
        return self.client.request(method, path, json=body, headers=headers, params=parameters)

    def create(self, document: Object, namespace: str, *, user: str = "", dry: bool = False) -> str:
        """Create an object in a namespace, and give why it is refused; empty if it is not."""
        place = PLACES[document["kind"]].format(namespace=namespace)
        answer = self.ask("POST", place, document, user=user, dry=dry)
        return "" if answer.is_success else str(answer.json()["message"])


def programs() -> Path:
    """The folder of the programs. Skips the test that asks where there are none."""
    if not KUBE.exists():
        pytest.skip(f"there is no {KUBE.name} in a folder `shared/cluster/bin` beside the checkout")
    version = hashlib.sha256(f"{KUBE.stat().st_mtime_ns} {KUBE.stat().st_size}".encode()).hexdigest()[:12]
    folder = Path(sys.prefix) / "weir" / f"kube-{version}"
    program = folder / "kube"
    if not program.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with pa.input_stream(str(KUBE), compression="zstd") as packed:
            program.with_suffix(".partial").write_bytes(packed.read())
        program.with_suffix(".partial").chmod(0o755)
        program.with_suffix(".partial").replace(program)
        for name in ("etcd", "kube-apiserver"):
            (folder / name).symlink_to("kube")
    return folder


@contextmanager
def api_server(folder: Path) -> Iterator[ApiServer]:
    """Run one, whose files are in `folder`, for as long as the block lasts."""
    etcd_port, peer_port, port = free_ports(3)
    (folder / "tokens").write_text(f'{TOKEN},administrator,1,"system:masters"\n')
    key = folder / "accounts.key"
    subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
    etcd, peer = f"http://{LOOPBACK}:{etcd_port}", f"http://{LOOPBACK}:{peer_port}"
    commands = (
        [
            *("etcd", "--name", "one", "--data-dir", str(folder / "etcd"), "--unsafe-no-fsync", "--log-level", "error"),
            *("--listen-client-urls", etcd, "--advertise-client-urls", etcd, "--listen-peer-urls", peer),
            *("--initial-advertise-peer-urls", peer, "--initial-cluster", f"one={peer}"),
        ],
        [
            *("kube-apiserver", "--etcd-servers", etcd, "--bind-address", LOOPBACK, "--secure-port", str(port)),
            *("--advertise-address", LOOPBACK, "--cert-dir", str(folder / "certificates")),
            *("--authorization-mode", "RBAC", "--token-auth-file", str(folder / "tokens")),
            *("--service-cluster-ip-range", "10.96.0.0/16", "--service-account-issuer", "https://kubernetes"),
            *("--service-account-key-file", str(key), "--service-account-signing-key-file", str(key)),
            *("--endpoint-reconciler-type", "none", "--profiling=false", "--allow-privileged"),
        ],
    )
    with ExitStack() as held:
        log = held.enter_context((folder / "log").open("wb"))
        for name, *arguments in commands:
            process = subprocess.Popen([str(programs() / name), *arguments], stdout=log, stderr=log)
            held.callback(process.wait, 60)
            held.callback(process.terminate)
        client = held.enter_context(
            httpx.Client(
                base_url=f"https://{LOOPBACK}:{port}",
                headers={"Authorization": f"Bearer {TOKEN}"},
                # It has signed its certificate itself, a moment ago.
                verify=False,
                timeout=60,
            )
        )

        def is_ready() -> bool:
            with suppress(httpx.TransportError):
                return client.get("/readyz").is_success
            return False

        wait_until(is_ready, "the API server answering")
        yield ApiServer(client)
