"""Each pod holds the credentials that it uses, its own where they are given, and a driver makes no pod with others."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chart.helm import HelmRefused, Object, of_kind, pod_specs, render
from tests.chart.installations import secrets
from tests.chart.schemas import validator
from tests.chart.test_objects import notes

KAFKA = {"SparkApplication/weir-ingestion driver", "SparkApplication/weir-billing driver", "Deployment/weir-connect"}
KAFKA |= {"Job/weir-setup", "Pod/weir-test", "Deployment/weir-api", "CronJob/weir-tidy"}
KAFKA |= {f"ScheduledSparkApplication/weir-audit-{name} driver" for name in ("hourly", "nightly")}


def read(objects: list[Object]) -> dict[str, set[str]]:
    """Names of the Secrets that each pod reads."""
    return {pod: {secret.split("/")[0] for secret in secrets(spec)} for pod, spec in pod_specs(objects).items()}


def test_the_password_of_kafka_is_where_kafka_is_used_and_nowhere_else() -> None:
    found = read(render("production.yaml"))
    assert {pod for pod, names in found.items() if "kafka-credentials" in names} == KAFKA


def test_a_scheduled_command_gets_no_user_of_kafka_where_it_needs_none() -> None:
    values = {"batch": {"tidy": {"kafka": False}}}
    assert "kafka-credentials" not in read(render("production.yaml", values=values))["CronJob/weir-tidy"]


PARTS: dict[str, tuple[dict[str, Any], str, set[str]]] = {
    "jobs.billing": (
        {"jobs": {"billing": {}}},
        "SparkApplication/weir-billing driver",
        {"postgres", "kafka", "storage"},
    ),
    "jobs.joins": ({"jobs": {"joins": {}}}, "SparkApplication/weir-joins driver", {"postgres", "storage"}),
    "audit": (
        {"audit": {}},
        "ScheduledSparkApplication/weir-audit-hourly driver",
        {"postgres", "kafka", "storage"},
    ),
    "batch.compact": ({"batch": {"compact": {}}}, "CronJob/weir-compact", {"postgres", "storage"}),
    "setup": ({"setup": {}}, "Job/weir-setup", {"postgres", "kafka"}),
    "connect": ({"connect": {}}, "Deployment/weir-connect", {"postgres", "kafka"}),
    "dashboard": ({"dashboard": {"enabled": True}}, "Deployment/weir-dashboard", {"postgres", "storage"}),
    "api": ({"api": {"readsTables": True}}, "Deployment/weir-api", {"postgres", "kafka", "storage"}),
    "webhooks": ({"webhooks": {"enabled": True}}, "Deployment/weir-webhooks", {"postgres"}),
    "test": ({"test": {}}, "Pod/weir-test", {"postgres", "kafka", "storage"}),
}
SASL = {"kafka": {"securityProtocol": "SASL_SSL", "existingSecret": "kafka-credentials"}}
RELEASES = {"kafka-credentials", "weir-postgres", "object-store"}


@pytest.mark.parametrize("part", PARTS)
def test_a_part_with_secrets_of_its_own_reads_those_alone_and_no_other_part_does(part: str) -> None:
    values, pod, kinds = PARTS[part]
    everything = "SparkApplication" in pod or "CronJob" in pod or part in ("api", "test")
    own = {kind: f"own-{kind}" for kind in (("postgres", "kafka", "storage") if everything else sorted(kinds))}
    place = values
    for step in part.split("."):
        place = place.setdefault(step, {})
    place["secrets"] = own
    plain = read(render("object-store.yaml", values={**SASL, "dashboard": {"enabled": True}}))
    found = read(render("object-store.yaml", values={**SASL, "dashboard": {"enabled": True}, **values}))
    assert found[pod] == {own[kind] for kind in kinds}
    related = "audit" if part == "audit" else pod.removesuffix(" driver").removesuffix(" executor")
    assert {name: names for name, names in found.items() if related not in name} == {
        name: names for name, names in plain.items() if related not in name
    }


def test_a_dashboard_that_holds_the_writers_key_is_warned_of_and_one_that_only_reads_is_not(tmp_path: Any) -> None:
    values = {"dashboard": {"enabled": True}}
    assert "object-store" in read(render("object-store.yaml", values=values))["Deployment/weir-dashboard"]
    reader = {"dashboard": {"enabled": True, "secrets": {"storage": "reader"}}}
    assert read(render("object-store.yaml", values=reader))["Deployment/weir-dashboard"] == {"weir-postgres", "reader"}
    words = "The dashboard holds the key that writes to the bucket"
    assert words in notes(tmp_path / "writer", "object-store.yaml", values)
    assert words not in notes(tmp_path / "reader", "object-store.yaml", reader)


def test_the_dashboard_may_have_an_identity_that_only_reads() -> None:
    given = {"annotations": {"role": "writer"}, "dashboardAnnotations": {"role": "reader"}}
    accounts = of_kind(render("production.yaml", values={"serviceAccount": given}), "ServiceAccount")
    roles = {name: account["metadata"].get("annotations", {}).get("role") for name, account in accounts.items()}
    assert roles == {"weir": "writer", "weir-driver": "writer", "weir-dashboard": "reader", "weir-api": None}


def role_of_api(**values: Any) -> str | None:
    """The role of the account of the API's pods, by its annotations."""
    given: dict[str, Any] = {"annotations": {"role": "writer"}, **values.pop("serviceAccount", {})}
    objects = render("production.yaml", values={"serviceAccount": given, "api": {"enabled": True, **values}})
    account = of_kind(objects, "ServiceAccount")[pod_specs(objects)["Deployment/weir-api"]["serviceAccountName"]]
    role: str | None = account["metadata"].get("annotations", {}).get("role")
    return role


def test_the_api_which_customers_reach_has_no_identity_that_it_does_not_need() -> None:
    """A cloud gives a pod the identity of its account, whether or not the pod mounts a token."""
    assert role_of_api() is None
    assert role_of_api(readsTables=True) == "writer", "as before, and the notes warn of it"
    assert role_of_api(readsTables=True, serviceAccount={"apiAnnotations": {"role": "reader"}}) == "reader"


def test_an_identity_that_writes_is_warned_of_and_one_that_only_reads_is_not(tmp_path: Any) -> None:
    values: dict[str, Any] = {
        "storage": {"s3": {"existingSecret": ""}},
        "dashboard": {"enabled": True},
        "api": {"enabled": True, "readsTables": True},
        "serviceAccount": {"annotations": {"role": "writer"}},
    }
    warned = notes(tmp_path / "writer", "object-store.yaml", values)
    own = {f"{part}Annotations": {"role": "reader"} for part in ("dashboard", "api")}
    values["serviceAccount"] |= own
    quiet = notes(tmp_path / "reader", "object-store.yaml", values)
    for part in ("dashboard", "API"):
        words = f"The {part} has the identity that writes to the bucket"
        assert words in warned
        assert words not in quiet


PRODUCTION = {
    "profile": "production",
    "kafka": {"bootstrap": "kafka:9093"},
    "postgres": {"existingSecret": "weir-postgres", "caSecret": "postgres-ca"},
}


def connections(**values: Any) -> dict[str, str]:
    (container,) = pod_specs(render(values={**PRODUCTION, **values}))["SparkApplication/weir-ingestion driver"][
        "containers"
    ]
    return {variable["name"]: variable.get("value", "") for variable in container["env"]}


def test_in_production_tls_is_the_default_and_less_must_be_asked_for() -> None:
    assert connections()["WEIR_KAFKA_SECURITY_PROTOCOL"] == "SSL"
    assert connections()["PGSSLMODE"] == "verify-full"
    with_user = {"bootstrap": "kafka:9093", "existingSecret": "kafka-credentials"}
    assert connections(kafka=with_user)["WEIR_KAFKA_SECURITY_PROTOCOL"] == "SASL_SSL"
    plain = {"bootstrap": "kafka:9092", "securityProtocol": "PLAINTEXT"}
    assert connections(kafka=plain)["WEIR_KAFKA_SECURITY_PROTOCOL"] == "PLAINTEXT"
    less = {"existingSecret": "weir-postgres", "sslMode": "require"}
    assert connections(postgres=less)["PGSSLMODE"] == "require"


def test_without_the_profile_the_connections_are_as_they_were() -> None:
    found = connections(profile="")
    assert found["WEIR_KAFKA_SECURITY_PROTOCOL"] == "PLAINTEXT"
    assert "PGSSLMODE" not in found


def admission() -> tuple[dict[str, Object], dict[str, Object]]:
    """The policies and their bindings. `test_api_server.py` asks a server what they refuse."""
    objects = render("production.yaml", values={"admissionPolicy": {"enabled": True}})
    kinds = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    policies, bindings = (of_kind(objects, kind) for kind in kinds)
    return policies, bindings


def test_the_admission_policies_are_for_the_drivers_of_this_release_and_deny() -> None:
    policies, bindings = admission()
    assert policies.keys() == bindings.keys() == {"metering-weir-drivers", "metering-weir-drivers-change"}
    for name, policy in policies.items():
        for document in (policy, bindings[name]):
            validator(document["kind"]).validate(document)
        (condition,) = policy["spec"]["matchConditions"]
        assert condition["expression"] == 'request.userInfo.username == "system:serviceaccount:metering:weir-driver"'
        assert bindings[name]["spec"] == {"policyName": name, "validationActions": ["Deny"]}
        assert policy["spec"]["failurePolicy"] == "Fail"


def test_it_lets_executors_read_the_secrets_and_claims_that_they_have_and_no_others() -> None:
    policies, _ = admission()
    variables = {each["name"]: each["expression"] for each in policies["metering-weir-drivers"]["spec"]["variables"]}
    assert variables["secrets"] == '["kafka-ca","postgres-ca","weir-spark"]'
    assert variables["claims"] == '["weir-tables"]'


@pytest.mark.parametrize("secret", ["weir-postgres", "kafka-credentials"])
def test_executors_hold_neither_the_database_nor_kafkas_user(secret: str) -> None:
    found = read(render("production.yaml"))
    holders = {pod for pod, names in found.items() if secret in names}
    executors = {pod for pod in found if pod.endswith("executor")}
    assert holders
    assert executors
    assert holders & executors == set()


def test_no_admission_policy_is_made_where_no_driver_makes_pods_and_an_older_kubernetes_is_refused() -> None:
    objects = render("quickstart.yaml", values={"admissionPolicy": {"enabled": True}})
    assert not of_kind(objects, "ValidatingAdmissionPolicy")
    with pytest.raises(HelmRefused, match=r"needs Kubernetes 1\.30 or newer"):
        render("production.yaml", values={"admissionPolicy": {"enabled": True}}, kubernetes="1.29.1")


def test_the_certificate_for_kafka_is_where_kafka_is_used_and_a_part_may_have_its_own() -> None:
    values = {"kafka": {"clientSecret": "kafka-client"}, "jobs": {"ingestion": {"mode": "cluster"}}}
    found = read(render("production.yaml", values=values))
    assert {pod for pod, names in found.items() if "kafka-client" in names} == KAFKA | {
        *("SparkApplication/weir-ingestion executor", "SparkApplication/weir-billing executor"),
        *(f"ScheduledSparkApplication/weir-audit-{name} executor" for name in ("hourly", "nightly")),
    } & found.keys()
    own = {**values, "api": {"enabled": True, "secrets": {"kafka": "own"}}}
    assert "kafka-client" not in read(render("production.yaml", values=own))["Deployment/weir-api"]
    rendered = pod_specs(render("production.yaml", values=values))["Deployment/weir-api"]["containers"][0]
    variables = {variable["name"]: variable.get("value") for variable in rendered["env"]}
    assert variables["WEIR_KAFKA_CLIENT_FILE"] == "/etc/weir-kafka-client/tls-combined.pem"
    assert {"name": "kafka-client", "mountPath": "/etc/weir-kafka-client", "readOnly": True} in rendered["volumeMounts"]


def test_a_certificate_for_a_connection_that_is_not_encrypted_is_refused() -> None:
    kafka = {"bootstrap": "kafka:9092", "securityProtocol": "PLAINTEXT", "clientSecret": "kafka-client"}
    with pytest.raises(HelmRefused, match=r"kafka\.clientSecret is for kafka\.securityProtocol=SSL"):
        render(values={**PRODUCTION, "kafka": kafka})
