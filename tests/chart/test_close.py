"""The scheduled close: off unless it is switched on, valid to its operator, in a pod as those of audits."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
import yaml

from jobs.close.config import CloseConfig
from tests.chart.crd import schedule_schema
from tests.chart.helm import HelmRefused, Object, application_spec, of_kind, pod_specs, render
from tests.chart.test_objects import variables

NAME = "weir-close"
ON = {"enabled": True}


def close(**values: Any) -> Object:
    return of_kind(render("production.yaml", values={"close": {**ON, **values}}), "ScheduledSparkApplication")[NAME]


def test_nothing_is_closed_unless_it_is_switched_on() -> None:
    objects = render("production.yaml")
    assert not [each for each in objects if each["metadata"]["name"].startswith(NAME)]


def test_the_close_is_valid_for_the_operator_and_runs_after_the_end_of_the_month_one_at_a_time() -> None:
    found = close(args=["--allow", "unpriced", "--reason", "agreed"])
    jsonschema.Draft202012Validator(schedule_schema()).validate(found)
    spec = found["spec"]
    assert (spec["schedule"], spec["timeZone"], spec["concurrencyPolicy"]) == ("7 6 2-5 * *", "UTC", "Forbid")
    assert application_spec(found)["arguments"] == [
        *("close", "--config", "/etc/weir/close.yaml", "--allow", "unpriced", "--reason", "agreed")
    ]
    assert application_spec(found)["restartPolicy"] == {"type": "Never"}


def test_a_close_reads_and_writes_what_an_audit_does() -> None:
    pods = pod_specs(render("production.yaml", values={"close": ON}))
    ((of_close,), (of_audit,)) = (
        pods[f"ScheduledSparkApplication/{name} driver"]["containers"] for name in (NAME, "weir-audit-nightly")
    )
    assert variables(of_close) == variables(of_audit)
    assert of_close["volumeMounts"] == of_audit["volumeMounts"]
    assert not {"ports", "livenessProbe"} & set(of_close)


def test_a_close_reaches_kafka_and_postgres_through_the_network_policies() -> None:
    policies = of_kind(render("production.yaml", values={"close": ON}), "NetworkPolicy")
    for name in ("weir-to-kafka", "weir-to-postgres"):
        assert "close" in policies[name]["spec"]["podSelector"]["matchExpressions"][0]["values"]


def test_the_configuration_parses_back() -> None:
    given = {"issuer": "acme-inc", "rounding": "half-up", "minor_units": {"XTS": 6}, "write_off_below": {"EUR": "0.5"}}
    objects = render("production.yaml", values={"close": {**ON, "config": given}})
    content = yaml.safe_load(of_kind(objects, "ConfigMap")[NAME]["data"]["close.yaml"])
    assert CloseConfig.model_validate(content) == CloseConfig.model_validate(given)


def test_what_the_close_does_not_know_is_refused_at_the_installation() -> None:
    with pytest.raises(HelmRefused, match="rounding"):
        close(config={"rounding": "up"})


def test_a_name_that_is_too_long_for_the_pods_of_its_runs_is_refused() -> None:
    values = {"audit": {"enabled": False}, "close": ON}
    render("production.yaml", values={**values, "fullnameOverride": "a" * 37})
    with pytest.raises(HelmRefused, match="more than 43 characters"):
        render("production.yaml", values={**values, "fullnameOverride": "a" * 38})
