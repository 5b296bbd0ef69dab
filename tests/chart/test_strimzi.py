"""Strimzi's resources are those of its own schemas, and say what the laptop's worker and connector are told.

`operator/kafkaconnects-1.2.0.json`, `kafkaconnectors`, `kafkatopics` and `kafkausers` are the schemas of version v1 in
`packaging/install/cluster-operator` of Strimzi 1.2.0 (github.com/strimzi/strimzi-kafka-operator, Apache-2.0), without
their descriptions.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from catalog import capture
from deployment.topic_list import TOPICS
from jobs.ingestion.config import IngestionConfig
from laptop.connect import settings_of_any
from tests.chart.crd import strict
from tests.chart.flows import Peer, may, pods
from tests.chart.helm import HelmRefused, Object, of_kind, render

OPERATOR = Path(__file__).with_name("operator")
FORBIDDEN = (
    *("group.id", "config.storage.topic", "offset.storage.topic", "status.storage.topic", "ssl.", "sasl.", "security."),
    *("listeners", "plugin.path", "rest.", "bootstrap.servers", "prometheus.metrics.reporter."),
    *("consumer.interceptor.classes", "producer.interceptor.classes"),
)
"""How settings begin that Strimzi sets itself, and refuses to be told (its description of `spec.config`)."""


def schema(kind: str) -> Any:
    whole = strict(json.loads((OPERATOR / f"{kind}-1.2.0.json").read_text(encoding="utf-8")))
    whole["properties"]["metadata"] = {"type": "object"}
    return jsonschema.Draft202012Validator(whole)


EXAMPLE = Path(__file__).parents[2] / "examples/strimzi-topics.yaml"
PAGE = Path(__file__).parents[2] / "docs/kafka-acls.md"


def rights_of(principal: str, events: tuple[str, ...]) -> set[tuple[str, str, str, frozenset[str]]]:
    """What the page gives to a principal: type, name, pattern and operations, for these topics of events."""
    found = set()
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 4 and cells[0] == principal:
            _, kind, name, operations = cells
            pattern = "prefix" if name.endswith("*") else "literal"
            for topic in events if name == "events" else (name.removesuffix("*"),):
                found.add((kind, topic, pattern, frozenset(operations.split(", "))))
    return found


def test_the_example_of_several_topics_gives_the_rights_of_the_page_for_each_of_them() -> None:
    """`test_kafka_security` shows on a broker that the page's rights are enough."""
    documents = list(yaml.safe_load_all(EXAMPLE.read_text(encoding="utf-8")))
    [events] = [topic for topic in TOPICS if topic.name == "events"]
    topics = []
    for document in documents:
        schema(f"{document['kind'].lower()}s").validate(document)
        name, spec = document["metadata"]["name"], document["spec"]
        if document["kind"] == "KafkaTopic":
            topics.append(name)
            settings = {key: str(value) for key, value in spec["config"].items()}
            assert events.settings.items() <= settings.items(), "as Weir would make it"
            assert spec["partitions"] == events.partitions
            continue
        given = {
            (of["type"], of["name"], of.get("patternType", "literal"), frozenset(acl["operations"]))
            for acl in spec["authorization"]["acls"]
            for of in [acl["resource"]]
        }
        of_producer = name == "gpu-producer"
        assert given == rights_of("producer" if of_producer else name, ("gpu",) if of_producer else tuple(topics)), name
    config = IngestionConfig.model_validate({"events": [{"topic": topics[0]}, {"topic": topics[1], "types": ["x"]}]})
    assert config.topics == tuple(topics) == ("events", "gpu")


def resources(*examples: str, values: dict[str, Any] | None = None) -> tuple[Object, Object]:
    objects = render(*examples, values=values)
    (worker,), (connector,) = (list(of_kind(objects, kind).values()) for kind in ("KafkaConnect", "KafkaConnector"))
    return worker, connector


def strimzi(**said: Any) -> dict[str, Any]:
    return {"connect": {"strimzi": {"enabled": True, "image": "example.com/connect:1", **said}}}


GIVEN: tuple[dict[str, Any], ...] = (
    {},
    strimzi(build={"image": ""}),
    {"kafka": {"saslMechanism": "PLAIN", "caSecret": ""}},
)


@pytest.mark.parametrize("values", GIVEN)
def test_strimzi_takes_them(values: dict[str, Any]) -> None:
    worker, connector = resources("strimzi.yaml", values=values)
    schema("kafkaconnects").validate(worker)
    schema("kafkaconnectors").validate(connector)
    assert [name for name in worker["spec"]["config"] if name.startswith(FORBIDDEN)] == []
    with pytest.raises(jsonschema.ValidationError, match="configStorageTopics"):
        schema("kafkaconnects").validate({**worker, "spec": {**worker["spec"], "configStorageTopics": "a"}})


def test_the_connector_belongs_to_the_worker_that_reads_connectors_from_the_cluster() -> None:
    worker, connector = resources("strimzi.yaml")
    assert worker["metadata"]["annotations"] == {"strimzi.io/use-connector-resources": "true"}
    assert connector["metadata"]["labels"]["strimzi.io/cluster"] == worker["metadata"]["name"]


@pytest.mark.parametrize("name", ["weir", "Metering-1", "a" * 80])
@pytest.mark.parametrize("ssl_mode", ["", "require", "verify-full"])
def test_the_connector_is_configured_as_on_a_laptop(name: str, ssl_mode: str) -> None:
    database = {"host": "db", "port": 6432, "name": name, "user": "capture", "passwordSecret": "s"}
    values = {"postgres": {"sslMode": ssl_mode}, "connect": {"strimzi": {"database": database}}}
    _, connector = resources("strimzi.yaml", values=values)
    environment = {"PGSSLMODE": ssl_mode, "PGSSLROOTCERT": "/mnt/weir-postgres/ca.crt"}
    told = capture.connector(f"postgresql://capture:secret@db:6432/{name}", environment)
    spec = connector["spec"]
    said = {**spec["config"], "connector.class": spec["class"], "tasks.max": str(spec["tasksMax"])}
    assert said == told
    assert connector["metadata"]["name"] == capture.CONNECTOR


def test_the_worker_is_configured_as_on_a_laptop() -> None:
    worker, _ = resources("strimzi.yaml")
    assert worker["spec"]["config"] == settings_of_any()
    assert settings_of_any()["config.providers.env.param.allowlist.pattern"] == capture.PASSWORD_VARIABLE


def test_passwords_are_read_from_secrets_by_the_pods_that_need_them() -> None:
    worker, connector = resources("strimzi.yaml")
    (variable,) = worker["spec"]["template"]["connectContainer"]["env"]
    reference = {"secretKeyRef": {"name": "weir-capture", "key": "password"}}
    assert variable == {"name": capture.PASSWORD_VARIABLE, "valueFrom": reference}
    assert connector["spec"]["config"]["database.password"] == f"${{env:{capture.PASSWORD_VARIABLE}}}"
    assert worker["spec"]["authentication"] == {
        "type": "scram-sha-512",
        "username": "weir",
        "passwordSecret": {"secretName": "kafka-credentials", "password": "password"},
    }


def test_a_worker_may_be_known_by_its_certificate() -> None:
    worker, _ = resources("strimzi-certificate.yaml")
    schema("kafkaconnects").validate(worker)
    assert worker["spec"]["authentication"] == {
        "type": "tls",
        "certificateAndKey": {"secretName": "weir-user", "certificate": "user.crt", "key": "user.key"},
    }
    assert worker["spec"]["tls"] == {"trustedCertificates": [{"secretName": "kafka-ca", "certificate": "ca.crt"}]}


def test_quickstarts_own_servers_need_nothing_more() -> None:
    worker, connector = resources("quickstart.yaml", values=strimzi())
    schema("kafkaconnects").validate(worker)
    (variable,) = worker["spec"]["template"]["connectContainer"]["env"]
    assert variable["valueFrom"]["secretKeyRef"] == {"name": "weir-quickstart", "key": "password"}
    told = capture.connector("postgresql://weir@weir-postgres/weir", {})
    assert connector["spec"]["config"].items() <= told.items()
    assert worker["spec"]["bootstrapServers"] == "weir-kafka:9092"
    assert not {"tls", "authentication"} & worker["spec"].keys()


def test_one_of_both_captures() -> None:
    chosen = of_kind(render("strimzi.yaml"), "Deployment")
    assert not [name for name in chosen if name.endswith("-connect")]
    plain = {document["kind"] for document in render("production.yaml")}
    assert not {"KafkaConnect", "KafkaConnector"} & plain
    nobody = {document["kind"] for document in render("production.yaml", values={"connect": {"enabled": False}})}
    assert not {"KafkaConnect", "KafkaConnector"} & nobody


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "nobody captures": ({"connect": {"enabled": False}}, "needs connect.enabled=true"),
    "no image": ({"connect": {"strimzi": {"build": {"image": ""}}}}, "needs one of connect.strimzi.image"),
    "two images": ({"connect": {"strimzi": {"image": "a"}}}, "needs one of connect.strimzi.image"),
    "no host": ({"connect": {"strimzi": {"database": {"host": ""}}}}, "needs connect.strimzi.database.host"),
    "no password": (
        {"connect": {"strimzi": {"database": {"passwordSecret": ""}}}},
        "needs connect.strimzi.database.host and .passwordSecret",
    ),
    "no user of Kafka": ({"connect": {"strimzi": {"kafkaUsername": ""}}}, "needs connect.strimzi.kafkaUsername"),
    "a certificate and a password": (
        {"connect": {"strimzi": {"clientCertificate": {"secret": "weir-user"}}}},
        "connect.strimzi.clientCertificate is for kafka.securityProtocol=SSL, but that is SASL_SSL.",
    ),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_strimzi_could_not_run_is_refused(why: str) -> None:
    values, says = REFUSED[why]
    with pytest.raises(HelmRefused, match=says.replace("(", r"\(")):
        render("strimzi.yaml", values=values)


def test_a_cluster_without_strimzi_is_refused() -> None:
    spark = ("sparkoperator.k8s.io/v1beta2/SparkApplication", "sparkoperator.k8s.io/v1beta2/ScheduledSparkApplication")
    with pytest.raises(HelmRefused, match=r"install Strimzi 0\.49 or newer first"):
        render("strimzi.yaml", api_versions=("v1/Pod", *spark))
    assert render("strimzi.yaml", api_versions=("v1/Pod", *spark, "kafka.strimzi.io/v1/KafkaConnector"))


def test_pods_of_strimzi_go_where_those_of_weir_go() -> None:
    worker, _ = resources("strimzi.yaml", values={"scheduling": {"priorityClassName": "metering"}})
    pod = worker["spec"]["template"]["pod"]
    (term,) = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term == {"matchExpressions": [{"key": "pool", "operator": "In", "values": ["metering"]}]}
    assert pod["priorityClassName"] == "metering"


def test_nodes_that_are_chosen_in_both_ways_are_chosen_in_both_for_strimzi_too() -> None:
    """Of several terms one must hold: what every pod must have is in each of them."""
    zones = [{"key": "zone", "operator": "In", "values": [zone]} for zone in ("a", "b")]
    terms = [{"matchExpressions": [zone]} for zone in zones]
    preferred = [{"weight": 1, "preference": {"matchExpressions": [zones[0]]}}]
    nodes = {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms},
        "preferredDuringSchedulingIgnoredDuringExecution": preferred,
    }
    worker, _ = resources("strimzi.yaml", values={"scheduling": {"affinity": {"nodeAffinity": nodes}}})
    schema("kafkaconnects").validate(worker)
    pool = {"key": "pool", "operator": "In", "values": ["metering"]}
    assert worker["spec"]["template"]["pod"]["affinity"]["nodeAffinity"] == {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [zone, pool]} for zone in zones]
        },
        "preferredDuringSchedulingIgnoredDuringExecution": preferred,
    }


def test_pods_of_strimzi_reach_quickstarts_own_servers_and_no_other_pod_does() -> None:
    objects = render("quickstart.yaml", values=strimzi())
    connect = Peer(labels={"strimzi.io/cluster": "weir-connect", "app.kubernetes.io/part-of": "weir"}, is_ours=True)
    other = Peer(labels={"strimzi.io/cluster": "other-connect", "app.kubernetes.io/part-of": "weir"}, is_ours=True)
    servers = pods(objects)
    for name, port in (("kafka", 9092), ("postgres", 5432)):
        assert may(objects, connect, servers[name], port), name
        assert not may(objects, other, servers[name], port), name
    plain = render("quickstart.yaml")
    assert not may(plain, connect, pods(plain)["kafka"], 9092)


def test_a_variable_of_the_worker_replaces_that_of_all_for_strimzi_too() -> None:
    """Server-side apply refuses a list with one name twice."""
    own, of_all = ({"name": "HTTPS_PROXY", "value": f"http://{name}:3128"} for name in ("own", "all"))
    worker, _ = resources("strimzi.yaml", values={"extraEnv": [of_all], "connect": {"env": [own]}})
    variables = worker["spec"]["template"]["connectContainer"]["env"]
    assert [each for each in variables if each["name"] == "HTTPS_PROXY"] == [own]
