"""Cases of people who installed other charts: numbers stay whole, wrong values are refused, no webhook is needed."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.chart.helm import CHART, HelmRefused, of_kind, render, run_helm

QUICKSTART: dict[str, Any] = {"quickstart": {"enabled": True}}
LARGE = {"max_record_bytes": 1_048_576, "dedupe_horizon_seconds": 3_024_000, "accept_past_seconds": 94_608_000}
BY_WEBHOOK = {
    *("volumeMounts", "env", "envFrom", "envVars", "securityContext", "podSecurityContext", "affinity", "tolerations"),
    *("sidecars", "initContainers", "volumes", "nodeSelector", "configMaps", "secrets"),
}
"""Fields of a driver or executor that the operator's webhook puts into the pod, and nobody else."""
SECRET = "registry-credentials"


def test_numbers_of_seven_and_more_digits_are_rendered_in_full() -> None:
    past = LARGE["accept_past_seconds"]
    config = {**LARGE, "backfill": {"sources": ["history/*"], "accept_past_seconds": past}}
    values = {**QUICKSTART, "jobs": {"ingestion": {"config": config}}}
    text = run_helm("template", "weir", str(CHART), "--values", "-", values=values)
    assert re.findall(r"[0-9]e\+[0-9]+", text) == []
    for number in {*LARGE.values()}:
        assert re.search(rf"\b{number}\b", text)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"image": {"tag": 20_190_612_073_634}}, r"/image/tag': got number, want string"),
        ({"jobs": {"joins": {"config": {"driver_memory_mib": "1g"}}}}, r"driver_memory_mib': got string, want integer"),
        ({"kafka": {"bootstrapServers": "a:9092"}}, r"'/kafka': additional properties 'bootstrapServers' not allowed"),
    ],
    ids=["a tag that YAML reads as a number", "memory with a unit", "a value of another chart"],
)
def test_a_value_that_would_be_misread_is_refused_and_named(values: dict[str, Any], says: str) -> None:
    with pytest.raises(HelmRefused) as refusal:
        render(values={**QUICKSTART, **values})
    assert re.search(says, str(refusal.value)), str(refusal.value)


def test_drivers_and_executors_need_no_webhook_of_the_operator() -> None:
    values = {
        **QUICKSTART,
        "image": {"pullSecrets": [SECRET]},
        "jobs": {"joins": {"mode": "cluster"}, "ingestion": {"mode": "cluster"}},
    }
    found = of_kind(render(values=values), "SparkApplication")
    assert len(found) == 4
    for name, application in found.items():
        spec = application["spec"]
        assert set(spec) & {"volumes", "sidecars"} == set(), name
        for role in ("driver", "executor"):
            assert set(spec[role]) & BY_WEBHOOK == set(), f"{name} {role}"
            if role == "driver" or "template" in spec[role]:
                pod = spec[role]["template"]["spec"]
                assert pod["securityContext"]["runAsNonRoot"] is True
                assert pod["volumes"], f"{name} {role}"
        assert spec["imagePullSecrets"] == [SECRET]
    for name in ("weir-joins", "weir-ingestion"):
        executor = found[name]["spec"]["executor"]
        assert executor["template"]["spec"]["volumes"]
        account = executor["serviceAccount"]
        assert account.startswith("weir")
        assert account != found[name]["spec"]["driver"]["serviceAccount"]
