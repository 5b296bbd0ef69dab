"""What no pod, role or application of the chart may do: one small function per rule, each names its violations."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from tests.chart.helm import Object, application_spec, pod_specs

Rule = Callable[[list[Object]], Iterator[str]]

SECRET = re.compile(r"(?i)(secret|password|passwd|token|credential|access[._-]?key|[._-]key$)")
PASSWORD = re.compile(
    r"(?i)(://[^/\s:@]*:[^/\s:@]+@|loginmodule[^;]*password=|host=.*password=|-BEGIN [A-Z ]*PRIVATE KEY)"
)
"""In a URL, in a line of JAAS, in a connection string, or as a key."""
SECRET_ARGUMENT = re.compile(r"(?i)(secret|password|passwd|token|credential|key)(=[^$]|$)")
NEEDS_TOKEN = "-dashboard"
"""Besides drivers with executors: whoever asks Kubernetes something."""


def _containers(objects: list[Object]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, spec in pod_specs(objects).items():
        for container in [*spec.get("initContainers", []), *spec["containers"]]:
            yield f"{name} {container['name']}", container


def pods_run_restricted(objects: list[Object]) -> Iterator[str]:
    """Pod Security level `restricted`, and a root file system that cannot be written."""
    for name, spec in pod_specs(objects).items():
        security = spec.get("securityContext", {})
        if security.get("runAsNonRoot") is not True or security.get("runAsUser", 1) == 0:
            yield f"{name} may run as root"
        if security.get("seccompProfile", {}).get("type") != "RuntimeDefault":
            yield f"{name} has no seccomp profile"
        if any(spec.get(shared) for shared in ("hostNetwork", "hostPID", "hostIPC")):
            yield f"{name} shares a namespace of its node"
        if any("hostPath" in volume for volume in spec.get("volumes", [])):
            yield f"{name} mounts a folder of its node"
    for name, container in _containers(objects):
        security = container.get("securityContext", {})
        if security.get("allowPrivilegeEscalation") is not False or security.get("privileged"):
            yield f"{name} may gain privileges"
        if security.get("capabilities", {}) != {"drop": ["ALL"]}:
            yield f"{name} keeps capabilities"
        if security.get("readOnlyRootFilesystem") is not True:
            yield f"{name} may write to its root file system"
        if security.get("runAsUser", 1) == 0 or security.get("runAsNonRoot") is False:
            yield f"{name} may run as root"


def no_secret_is_plain_text(objects: list[Object]) -> Iterator[str]:
    """Not in a variable, a Spark setting, an argument or a ConfigMap."""
    for name, container in _containers(objects):
        for variable in container.get("env", []):
            value = str(variable.get("value", ""))
            if value and (SECRET.search(variable["name"]) or PASSWORD.search(value)):
                yield f"{name} has {variable['name']} as plain text"
        if any(_tells(argument) for argument in [*container.get("command", []), *container.get("args", [])]):
            yield f"{name} has a secret in its arguments"
    for document in objects:
        place = f"{document['kind']}/{document['metadata']['name']}"
        spec = application_spec(document)
        for key, value in {**spec.get("sparkConf", {}), **spec.get("hadoopConf", {})}.items():
            is_place = key.endswith(".file")
            if (SECRET.search(key) and not is_place) or PASSWORD.search(value):
                yield f"{place} has {key} in its settings"
        if any(_tells(argument) for argument in spec.get("arguments", [])):
            yield f"{place} has a secret in its arguments"
        if document["kind"] == "ConfigMap" and any(PASSWORD.search(v) for v in document["data"].values()):
            yield f"{place} holds a password"


def _tells(argument: str) -> bool:
    return bool(SECRET_ARGUMENT.search(argument) or PASSWORD.search(argument))


def roles_are_exact(objects: list[Object]) -> Iterator[str]:
    """Of one namespace, without wildcards, and without the verbs and kinds by which one gains more rights."""
    for document in objects:
        place = f"{document['kind']}/{document['metadata']['name']}"
        if document["kind"] in ("ClusterRole", "ClusterRoleBinding"):
            yield f"{place} is for the whole cluster"
        for rule in document.get("rules", []) if document["kind"] in ("Role", "ClusterRole") else []:
            if "*" in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]:
                yield f"{place} has a wildcard"
            if {"secrets", "pods/exec", "serviceaccounts/token", "roles", "rolebindings"} & set(rule["resources"]):
                yield f"{place} reaches {rule['resources']}"
            if {"escalate", "bind", "impersonate"} & set(rule["verbs"]):
                yield f"{place} may {rule['verbs']}"


def the_dashboard_only_reads_applications(objects: list[Object]) -> Iterator[str]:
    """Nothing in Kubernetes beyond the states of the SparkApplications of its namespace."""
    for document in objects:
        if document["kind"] == "Role" and document["metadata"]["name"].endswith("-dashboard"):
            allowed = [{"apiGroups": ["sparkoperator.k8s.io"], "resources": ["sparkapplications"]}]
            if [{key: rule[key] for key in ("apiGroups", "resources")} for rule in document["rules"]] != allowed:
                yield f"{document['metadata']['name']} reads other things"
            if not set(document["rules"][0]["verbs"]) <= {"get", "list", "watch"}:
                yield f"{document['metadata']['name']} does more than read"


def no_needless_token(objects: list[Object]) -> Iterator[str]:
    """A token is mounted only where Kubernetes is asked something; it is never left to the default."""
    executors = {
        f"{document['kind']}/{document['metadata']['name']} driver"
        for document in objects
        if (spec := application_spec(document)) and "kubernetesMaster" not in spec["driver"]
    }
    for name, spec in pod_specs(objects).items():
        if "automountServiceAccountToken" not in spec:
            yield f"{name} leaves its token to the default"
        elif spec["automountServiceAccountToken"] and not (name in executors or name.endswith(NEEDS_TOKEN)):
            yield f"{name} has a token that it does not need"
    for document in objects:
        if document["kind"] == "ServiceAccount" and document.get("automountServiceAccountToken") is not False:
            yield f"ServiceAccount/{document['metadata']['name']} gives its token to every pod"


def memory_is_limited(objects: list[Object]) -> Iterator[str]:
    """What a pod may take from its node. Spark limits its own pods by heap and overhead."""
    for name, container in _containers(objects):
        is_spark = name.startswith(("SparkApplication/", "ScheduledSparkApplication/"))
        if not is_spark and "memory" not in container.get("resources", {}).get("limits", {}):
            yield f"{name} may take all memory of its node"


def sparks_ui_is_closed(objects: list[Object]) -> Iterator[str]:
    """It would show configurations, and end jobs, without a password."""
    for document in objects:
        spec = application_spec(document)
        if spec and spec["sparkConf"].get("spark.ui.enabled") != "false":
            yield f"{document['kind']}/{document['metadata']['name']} opens Spark's UI"


RULES: tuple[Rule, ...] = (
    sparks_ui_is_closed,
    pods_run_restricted,
    no_secret_is_plain_text,
    roles_are_exact,
    the_dashboard_only_reads_applications,
    no_needless_token,
    memory_is_limited,
)
