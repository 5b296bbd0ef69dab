"""Every value of values.yaml is read by a template: changed alone, it changes what is rendered from some example.

Method: a run of helm renders a chart of nothing but copies of ours, each with one value of one example changed.
"""

from __future__ import annotations

import re
import shutil
from collections import defaultdict
from collections.abc import Iterable, Mapping
from copy import deepcopy
from functools import reduce
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import yaml

from charts.comments import leaves
from metering.vocabulary import Job
from tests.chart.helm import CHART, VALUES, run_helm
from tests.chart.test_generated import schema

Step = tuple[str, ...]
DEFAULTS: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
EXAMPLES = {
    name: yaml.safe_load((VALUES / f"{name}.yaml").read_text(encoding="utf-8"))
    for name in ("production", "quickstart", "object-store", "existing-claim", "strimzi", "strimzi-certificate")
} | {
    name: yaml.safe_load((CHART / "ci" / f"{name}-values.yaml").read_text(encoding="utf-8"))
    for name in ("yunikorn", "platform-team", "gateway-api", "volcano", "flux-quickstart", "aks-abfs")
}
"""The one that reads most comes first, as only what it does not read is tried with the next."""
WHAT_IS_OFF: Mapping[str, Any] = {
    "watches": True,
    "views": {"health": {"of": "outcomes", "by": ["model"], "measures": {"requests": "count"}}},
    "patterns": {
        "failures": {
            "of": "outcomes",
            "partition_by": ["account"],
            "pattern": "A{3}",
            "within": "PT1M",
            "define": {"A": 'status = "error"'},
        }
    },
    "kafka": {"securityProtocol": "SSL", "clientSecret": "client"},
    "close": {"enabled": True},
    "webhooks": {"enabled": True},
    "api": {"enabled": True, "oidc": {"issuer": "https://login.example.com", "audience": "weir"}},
    "dashboard": {
        "signIn": {
            "enabled": True,
            "metadataUrl": "https://login.example.com/.well-known/openid-configuration",
            "clientId": "weir",
            "existingSecret": "sign-in",
            "redirectUri": "https://weir.example.com/oauth2callback",
        }
    },
    "networkPolicies": {"enabled": True},
}
"""What no example switches on all at once."""
ONLY_REFUSED: Step = ("dashboard", "withoutSignIn")
"""Read by a refusal alone, which test_refused has."""
AT_ONCE = 40
BATCH = ("batch", "compact")
OTHER: Mapping[Step, Any] = {
    # Mappings of which a template reads what it knows.
    **{
        (part, "scheduling"): {"priorityClassName": "other"}
        for part in ("jobDefaults", "connect", "dashboard", "api", "webhooks")
    },
    **{("jobs", job, "config"): {"driver_memory_mib": 777} for job in Job},
    ("audit", "config"): {"driver_memory_mib": 777},
    # What a batch may say, and values.yaml does not.
    (*BATCH, "timeZone"): "Europe/Berlin",
    (*BATCH, "resources"): {"limits": {"memory": "9Gi"}},
    (*BATCH, "concurrencyPolicy"): "Replace",
    (*BATCH, "activeDeadlineSeconds"): 9,
    (*BATCH, "suspend"): True,
    (*BATCH, "env"): [{"name": "other"}],
}
"""Values of which their default does not say what another one is."""


def other(path: Step, value: Any) -> Any:
    """Another value of the same kind."""
    place = place_in_schema(path)
    if path in OTHER:
        return OTHER[path]
    if words := place.get("enum"):
        return next(word for word in words if word != value)
    if isinstance(value, list):
        kinds = {"string": "other", "integer": 9}
        return [*value, kinds.get(place.get("items", {}).get("type"), {"name": "other"})]
    if isinstance(value, dict):
        return {**value, "other": "other"}
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int) else f"{value}9"


def place_in_schema(path: Step) -> Mapping[str, Any]:
    whole = schema()
    place = whole
    for step in (*path, ""):
        while "$ref" in place:
            place = whole["$defs"][place["$ref"].removeprefix("#/$defs/")]
        if step:
            place = place.get("properties", {}).get(step, {})
    return place


def merged(below: Any, above: Any) -> Any:
    """Values as helm merges them."""
    if not isinstance(below, dict) or not isinstance(above, dict):
        return above
    return {**below, **{key: merged(below[key], value) if key in below else value for key, value in above.items()}}


def changed(example: Mapping[str, Any], path: Step) -> dict[str, Any]:
    values = dict(deepcopy(example))
    value = reduce(lambda found, step: found.get(step, {}), path, merged(DEFAULTS, values))
    *above, last = path
    reduce(lambda found, step: found.setdefault(step, {}), above, values)[last] = other(path, value)
    return values


def rendered(folder: Path, copies: Mapping[str, Mapping[str, Any]], chart: Path = CHART) -> dict[str, str]:
    """By the name of a copy (which must not occur elsewhere) what the chart renders with its values."""
    shutil.copytree(chart, folder / "charts" / "weir")
    templates = folder / "charts" / "weir" / "templates"
    # A refusal would be that of all copies; what only a refusal reads does nothing.
    (templates / "_checks.tpl").write_text('{{ define "weir.check" }}{{ end }}', encoding="utf-8")
    secret = templates / "quickstart" / "secret.yaml"
    secret.write_text(secret.read_text(encoding="utf-8").replace("randAlphaNum 32", '"any"'), encoding="utf-8")
    (folder / "charts" / "weir" / "files" / "weir.json").write_text("{}", encoding="utf-8")
    dependencies = [{"name": "weir", "version": "*", "repository": "", "alias": name} for name in copies]
    meta = {"apiVersion": "v2", "name": "copies", "version": "1.0.0", "dependencies": dependencies}
    (folder / "Chart.yaml").write_text(yaml.safe_dump(meta), encoding="utf-8")
    given = {name: {"fullnameOverride": "weir", **values} for name, values in copies.items()}
    text = run_helm("template", "weir", str(folder), "--skip-schema-validation", "--values", "-", values=given)
    found: defaultdict[str, list[str]] = defaultdict(list)
    for document in re.split(r"^---$", text, flags=re.MULTILINE):
        if source := re.search(r"# Source: copies/charts/(\w+)/", document):
            found[source[1]].append(document.replace(source[1], "weir"))
    return {name: "\n".join(documents) for name, documents in found.items()}


def unread(
    folder: Path,
    paths: Iterable[Step],
    chart: Path = CHART,
    examples: Mapping[str, Mapping[str, Any]] = MappingProxyType(EXAMPLES),
) -> set[Step]:
    """Values of which no example shows a trace when they change."""
    left = set(paths)
    for example, values in examples.items():
        ordered = sorted(left)
        left = set()
        # Helm takes longer for a copy the more of them there are.
        for first in range(0, len(ordered), AT_ONCE):
            tried = {f"copy{number}x": path for number, path in enumerate(ordered[first : first + AT_ONCE])}
            copies = {name: changed(values, path) for name, path in tried.items()}
            whole = rendered(folder / f"{example}-{first}", {"plain": values, **copies}, chart)
            left |= {path for name, path in tried.items() if whole[name] == whole["plain"]}
    return left


@pytest.mark.long
def test_a_template_reads_every_value(tmp_path: Path) -> None:
    examples = {"what-is-off": merged(EXAMPLES["production"], WHAT_IS_OFF), **EXAMPLES}
    assert unread(tmp_path, {*leaves(DEFAULTS), *OTHER}, examples=examples) == {ONLY_REFUSED}


def test_a_value_that_no_template_reads_is_found(tmp_path: Path) -> None:
    forgotten, read = ("dashboard", "motto"), ("dashboard", "replicas")
    assert unread(tmp_path, {forgotten, read}) == {forgotten}
