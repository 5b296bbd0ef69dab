"""Bad values are refused before anything reaches a cluster, and the reason names the value."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from jobs.stack import Jobs
from metering.period_meters import Aggregation
from tests.chart.helm import CHART, HelmRefused, of_kind, render

OPERATOR = ("sparkoperator.k8s.io/v1beta2/SparkApplication", "sparkoperator.k8s.io/v1beta2/ScheduledSparkApplication")
ON_S3: dict[str, Any] = {
    "quickstart": {"enabled": False},
    "profile": "production",
    "kafka": {"bootstrap": "a:1"},
    "postgres": {"existingSecret": "b", "caSecret": "c"},
    "storage": {"kind": "s3", "s3": {"url": "s3://metering/weir", "existingSecret": "writer"}},
}

BY_IDENTITY: dict[str, Any] = {
    **ON_S3,
    "storage": {"kind": "s3", "s3": {"url": "s3://metering/weir"}},
    "serviceAccount": {"annotations": {"role": "writer"}},
}

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    # By the schema: shape, kind and bounds of one value.
    "unknown top-level key": ({"kafak": {}}, "additional properties 'kafak' not allowed"),
    "unknown key of a section": ({"kafka": {"brokers": "a:1"}}, "additional properties 'brokers' not allowed"),
    "unknown job": ({"jobs": {"audits": {"config": {}}}}, "additional properties 'audits' not allowed"),
    "unknown field of a job's configuration": (
        {"jobs": {"joins": {"config": {"timeout_seconds": 5}}}},
        "additional properties 'timeout_seconds' not allowed",
    ),
    "unknown field inside a job's configuration": (
        {"jobs": {"ingestion": {"config": {"clocks": {"devices": ["a"]}}}}},
        "additional properties 'devices' not allowed",
    ),
    "configuration out of bounds": (
        {"jobs": {"ingestion": {"config": {"max_records_per_batch": 2_000_000}}}},
        "/jobs/ingestion/config/max_records_per_batch': maximum",
    ),
    "schema of the database that is not Weir's": (
        {"postgres": {"schema": "public"}},
        "/postgres/schema': 'not'",
    ),
    "configuration of a wrong type": (
        {"jobs": {"billing": {"config": {"grace_seconds": "5m"}}}},
        "/jobs/billing/config/grace_seconds': got string, want integer",
    ),
    "unknown meter": (
        {"jobs": {"billing": {"config": {"late_policy": {"tokens": "drop"}}}}},
        "late_policy names tokens, but the meters are cached_tokens, input_tokens, output_tokens, requests.",
    ),
    "meter that is no longer declared": (
        {
            "meters": {"answers": {"unit": "answer", "count": "outcomes"}},
            "jobs": {"billing": {"config": {"late_policy": {"requests": "drop"}}}},
        },
        "late_policy names requests, but the meters are answers.",
    ),
    "meter that counts nothing": ({"meters": {"answers": {"unit": "answer"}}}, "meters.answers has one of count"),
    "meter that counts and sums": (
        {"meters": {"answers": {"unit": "answer", "count": "outcomes", "sum": "images"}}},
        "meters.answers has one of count: outcomes and sum: <column>.",
    ),
    "meter that sums and has another way, too": (
        {"meters": {"seats": {"unit": "user", "sum": "input_tokens", "unique": "user_id", "period": "month"}}},
        "A meter of a period has one of unique, min, max and latest: <column> instead.",
    ),
    "meter of no period": (
        {"meters": {"seats": {"unit": "user", "unique": "user_id"}}},
        "meters.seats has unique, and period (day or month) belongs to",
    ),
    "period of a meter that sums": (
        {"meters": {"tokens": {"unit": "token", "sum": "input_tokens", "period": "day"}}},
        "meters.tokens has sum, and period (day or month) belongs to",
    ),
    "attributes of prices of one job": (
        {"jobs": {"joins": {"config": {"price_attributes": ["operation"]}}}},
        "price_attributes are the same for all jobs: give them once, as priceAttributes beside jobs.",
    ),
    "meter with a name of its own": (
        {"meters": {"GPU": {"unit": "second", "sum": "gpu"}}},
        "a name holds a-z, 0-9 and _",
    ),
    "meter with a grace of its own that is shorter than the timeout": (
        {"meters": {"answers": {"unit": "answer", "count": "outcomes", "grace_seconds": 60}}},
        (
            "meters.answers.grace_seconds is 60, but must be at least the longest of "
            "jobs.joins.config.completion_timeout_seconds and completion_timeouts: completion_timeout_seconds is 600."
        ),
    ),
    "meters of one job": (
        {"jobs": {"joins": {"config": {"meters": {"answers": {"unit": "answer", "count": "outcomes"}}}}}},
        "meters are the same for all jobs: give them once, as meters beside jobs.",
    ),
    "five dimensions": ({"dimensions": ["a", "b", "c", "d", "e"]}, "dimensions': maxItems: got 5, want 4"),
    "a column that no account has": (
        {"dimensions": ["account.currency"]},
        r"dimensions/0': 'account.currency' does not match pattern",
    ),
    "a tag that no list of names can hold": ({"dimensions": ["account.tags.a,b"]}, "'account.tags.a,b' does not match"),
    "unknown late policy": (
        {"jobs": {"billing": {"config": {"late_policy": {"requests": "ignore"}}}}},
        "value must be one of 'correct', 'drop', 'hold'",
    ),
    "unknown mode": ({"jobs": {"joins": {"mode": "standalone"}}}, "value must be one of 'local', 'cluster'"),
    "no executor": ({"jobs": {"joins": {"executor": {"instances": 0}}}}, "instances': minimum: got 0, want 1"),
    "fraction of a core": ({"jobDefaults": {"driver": {"cores": 0.5}}}, "cores': got number, want integer"),
    "memory without a unit": (
        {"jobDefaults": {"driver": {"memoryOverhead": "768"}}},
        "memoryOverhead': '768' does not",
    ),
    "Kubernetes' unit where Spark's is meant": (
        {"jobDefaults": {"executor": {"memory": "1Gi"}}},
        "memory': '1Gi' does not",
    ),
    "size without a unit": ({"storage": {"claim": {"size": "20"}}}, "size': '20' does not match pattern"),
    "access mode that cannot be shared": (
        {"storage": {"claim": {"accessMode": "ReadWriteOncePod"}}},
        "value must be one of 'ReadWriteOnce', 'ReadWriteMany'",
    ),
    "broker without a port": ({"kafka": {"bootstrap": "kafka"}}, "/kafka/bootstrap': 'kafka' does not match"),
    "protocol that Kafka does not have": ({"kafka": {"securityProtocol": "TLS"}}, "/kafka/securityProtocol"),
    "bucket that is no URL": ({"storage": {"s3": {"url": "bucket/weir"}}}, "/storage/s3/url': 'bucket/weir' does not"),
    "port that no pod has": ({"networkPolicies": {"kafkaPorts": [99_999]}}, "maximum: got 99,999, want 65,535"),
    "schedule of a batch left out": ({"batch": {"audit": {"args": ["a"]}}}, "missing property 'schedule'"),
    "image without a name": ({"image": {"repository": ""}}, "/image/repository': '' does not match"),
    "a number as a Spark setting": ({"jobDefaults": {"sparkConf": {"spark.x": 1}}}, "got number, want string"),
    # By the templates: what only several values together, or the cluster, make wrong.
    "no brokers": ({"quickstart": {"enabled": False}}, "kafka.bootstrap is empty"),
    "no database": (
        {"quickstart": {"enabled": False}, "kafka": {"bootstrap": "a:1"}},
        "postgres.existingSecret is empty",
    ),
    "SASL without a password": (
        {"kafka": {"bootstrap": "a:1", "securityProtocol": "SASL_SSL"}},
        "kafka.securityProtocol=SASL_SSL needs kafka.existingSecret",
    ),
    "security for quickstart's broker": ({"kafka": {"securityProtocol": "SSL"}}, "speaks PLAINTEXT only"),
    "verification without an authority": ({"postgres": {"sslMode": "verify-full"}}, "needs postgres.caSecret"),
    "object store without a URL": ({"storage": {"kind": "s3"}}, "storage.kind=s3 needs storage.s3.url"),
    "Azure's store without a URL": ({"storage": {"kind": "abfs"}}, "storage.kind=abfs needs storage.abfs.url"),
    "Azure's store by its blobs' name": (
        {"storage": {"abfs": {"url": "abfss://metering@account.blob.core.windows.net/weir"}}},
        "/storage/abfs/url': 'abfss://metering@account.blob.core.windows.net/weir' does not",
    ),
    "another store than the kind's": (
        {
            "storage": {
                "kind": "abfs",
                "abfs": {"url": "abfss://weir@metering.dfs.core.windows.net"},
                "s3": {"url": "s3://weir"},
            }
        },
        "storage.s3 is given, but storage.kind is abfs",
    ),
    "object store that is not used": ({"storage": {"s3": {"url": "s3://weir"}}}, "but storage.kind is claim"),
    "grace shorter than the timeout": (
        {"jobs": {"billing": {"config": {"grace_seconds": 60}}}},
        "grace_seconds is 60, but must be at least the longest of",
    ),
    "timeout longer than the default grace": (
        {"jobs": {"joins": {"config": {"completion_timeout_seconds": 901}}}},
        (
            "joins.config.completion_timeout_seconds is 901, but must be at most "
            "jobs.billing.config.grace_seconds, which is 900 where it is not given"
        ),
    ),
    "timeout of one model longer than the grace": (
        {"jobs": {"joins": {"config": {"completion_timeouts": {"slow": 901}}}}},
        "joins.config.completion_timeouts.slow is 901, but must be at most jobs.billing.config.grace_seconds",
    ),
    "clocks further apart than half the timeout": (
        {"jobs": {"joins": {"config": {"completion_timeout_seconds": 119}}}},
        (
            "joins.config.completion_timeout_seconds is 119, but must be at least 120: twice "
            "jobs.ingestion.config.max_clock_ahead_seconds, which is 60 where it is not given"
        ),
    ),
    "clocks further apart than half the timeout, both given": (
        {
            "jobs": {
                "joins": {"config": {"completion_timeout_seconds": 400}},
                "ingestion": {"config": {"max_clock_ahead_seconds": 300}},
            }
        },
        "max_clock_ahead_seconds is 300, but must be at most half of the shortest of",
    ),
    "source silent after it is retired": (
        {"jobs": {"ingestion": {"config": {"source_silent_after_seconds": 86400}}}},
        "source_silent_after_seconds is 86400, but must be less than source_retired_after_seconds, which is 86400",
    ),
    "no grace at all": ({"jobs": {"billing": {"config": {"grace_seconds": 0}}}}, "grace_seconds is 0, but must be"),
    "source retired before it is silent": (
        {"jobs": {"ingestion": {"config": {"source_retired_after_seconds": 900}}}},
        "source_retired_after_seconds is 900, but must be greater than source_silent_after_seconds, which is 900",
    ),
    "empty pattern of devices": (
        {"jobs": {"ingestion": {"config": {"clocks": {"device": [""]}}}}},
        "/clocks/device/0': minLength: got 0, want 1",
    ),
    "pattern of devices with too many characters": (
        {"jobs": {"ingestion": {"config": {"clocks": {"device": ["a" * 513]}}}}},
        "/clocks/device/0': maxLength: got 513, want 512",
    ),
    "model with too many characters": (
        {"jobs": {"joins": {"config": {"completion_timeouts": {"a" * 513: 300}}}}},
        "maxLength: got 513, want 512",
    ),
    "pattern of devices with too many bytes": (
        {"jobs": {"ingestion": {"config": {"clocks": {"device": ["short", "é" * 257]}}}}},
        "jobs.ingestion.config.clocks.device holds a name of 514 bytes, but names have at most 512",
    ),
    "model with too many bytes": (
        {"jobs": {"joins": {"config": {"completion_timeouts": {"é" * 257: 300}}}}},
        "jobs.joins.config.completion_timeouts holds a name of 514 bytes, but names have at most 512",
    ),
    "contract without a type": ({"contracts": [{"type": "object"}]}, "/contracts/0': missing property '$id'"),
    "contract with a type that is no text": ({"contracts": [{"$id": 3}]}, "/contracts/0/$id': got number, want string"),
    "contract with an empty type": ({"contracts": [{"$id": ""}]}, "/contracts/0/$id': minLength: got 0, want 1"),
    "contract with a control character in its type": ({"contracts": [{"$id": "a\nb"}]}, "does not match pattern"),
    "contract that is the path of a file": ({"contracts": ["gpu.json"]}, "/contracts/0': got string, want object"),
    "contract below the job without a type": (
        {"jobs": {"ingestion": {"config": {"contracts": [{}]}}}},
        "/jobs/ingestion/config/contracts/0': missing property '$id'",
    ),
    "more contracts than there may be": (
        {"contracts": [{"$id": f"gpu.v{number}"} for number in range(101)]},
        "/contracts': maxItems: got 101, want 100",
    ),
    "contracts in two places": (
        {"contracts": [{"$id": "a"}], "jobs": {"ingestion": {"config": {"contracts": [{"$id": "b"}]}}}},
        "contracts and jobs.ingestion.config.contracts are both given",
    ),
    "two contracts of one type": ({"contracts": [{"$id": "a"}, {"$id": "a"}]}, 'two documents with the $id "a"'),
    "contract with a type of too many bytes": ({"contracts": [{"$id": "é" * 257}]}, "holds a $id of 514 bytes"),
    "sign-in without its Secret": (
        {
            "dashboard": {
                "signIn": {
                    "enabled": True,
                    "metadataUrl": "https://p/.well-known/openid-configuration",
                    "clientId": "weir",
                }
            }
        },
        "dashboard.signIn.enabled needs dashboard.signIn.existingSecret",
    ),
    "sign-in that comes back where the dashboard is not": (
        {
            "dashboard": {
                "ingress": {"enabled": True, "hosts": ["weir.example.com"], "path": "/live"},
                "signIn": {
                    "enabled": True,
                    "metadataUrl": "https://p/.well-known/openid-configuration",
                    "clientId": "weir",
                    "existingSecret": "sign-in",
                    "redirectUri": "https://weir.example.com/oauth2callback",
                },
            }
        },
        "the dashboard is served below /live: it must end with /live/oauth2callback.",
    ),
    "dashboard that everybody reaches without sign-in": (
        {"dashboard": {"service": {"type": "LoadBalancer"}}},
        "everybody who reaches it would see all bills",
    ),
    "ingress without a host": ({"dashboard": {"ingress": {"enabled": True}}}, "needs dashboard.ingress.hosts"),
    "ingress of the API without a host": (
        {"api": {"enabled": True, "ingress": {"enabled": True}}},
        "needs api.ingress.hosts",
    ),
    "route without a gateway": ({"api": {"enabled": True, "route": {"enabled": True}}}, "needs api.route.parentRefs"),
    "more pods at least than at most": (
        {"api": {"enabled": True, "autoscaling": {"enabled": True, "minReplicas": 11}}},
        "api.autoscaling.minReplicas is 11, but must be at most maxReplicas, which is 10",
    ),
    "part of no CPU": (
        {"api": {"enabled": True, "autoscaling": {"enabled": True}, "resources": {"requests": {"cpu": None}}}},
        "needs api.resources.requests.cpu",
    ),
    "path without a slash": ({"api": {"paths": ["v1"]}}, "/api/paths/0': 'v1' does not match pattern"),
    "password in a variable of the API": (
        {"api": {"env": [{"name": "WEIR_KAFKA_PASSWORD", "value": "x"}]}},
        "api.env gives WEIR_KAFKA_PASSWORD as plain text",
    ),
    "batch with the name of the API": ({"batch": {"api": {"schedule": "@daily", "args": ["a"]}}}, "batch.api has the"),
    "name too long for Spark": ({"fullnameOverride": "a" * 41}, "maxLength: got 41, want 40"),
    "name that starts with a digit": ({"fullnameOverride": "1weir"}, 'The name "1weir" cannot begin the names'),
    "accounts that nobody names": ({"serviceAccount": {"create": False}}, "name the account of the pods"),
    "account of drivers that nobody names": (
        {"serviceAccount": {"create": False, "name": "a", "dashboardName": "b"}, "audit": {"mode": "cluster"}},
        "name the account of its driver",
    ),
    "account of the dashboard that nobody names": (
        {"serviceAccount": {"create": False, "name": "a"}},
        "name the account of the dashboard",
    ),
    "password of quickstart in two places": (
        {"quickstart": {"enabled": True, "password": "a" * 16, "existingSecret": "b"}},
        "quickstart.password and quickstart.existingSecret are both given",
    ),
    "password of quickstart that no URL can have": (
        {"quickstart": {"enabled": True, "password": "a" * 15 + "@"}},
        "/quickstart/password': 'aaaaaaaaaaaaaaa@' does not match",
    ),
    "executors by load where there are none": (
        {"jobs": {"joins": {"dynamicAllocation": {"enabled": True}}}},
        "jobs.joins.dynamicAllocation.enabled needs jobs.joins.mode=cluster",
    ),
    "fewer executors at most than at the start": (
        {"audit": {"mode": "cluster", "dynamicAllocation": {"enabled": True, "initialExecutors": 5}}},
        "audit.dynamicAllocation has 1 executors at least, 5 at the start and 4 at most",
    ),
    "production without TLS's authority": (
        {
            "quickstart": {"enabled": False},
            "profile": "production",
            "kafka": {"bootstrap": "a:1"},
            "postgres": {"existingSecret": "b"},
        },
        "verify the database with. It is the default of profile=production",
    ),
    "quickstart in production": (
        {"profile": "production"},
        "profile=production and quickstart.enabled=true do not go together",
    ),
    "dashboard that may write to the bucket, in production": (
        ON_S3,
        "profile=production needs dashboard.secrets.storage",
    ),
    "API that may write to the bucket, in production": (
        {
            **ON_S3,
            "dashboard": {"secrets": {"storage": "reader"}},
            "api": {"enabled": True, "readsTables": True},
        },
        "profile=production needs api.secrets.storage",
    ),
    "dashboard with the identity that may write to the bucket, in production": (
        BY_IDENTITY,
        "profile=production needs serviceAccount.dashboardAnnotations",
    ),
    "API with the identity that may write to the bucket, in production": (
        {
            **BY_IDENTITY,
            "serviceAccount": {"annotations": {"role": "writer"}, "dashboardAnnotations": {"role": "reader"}},
            "api": {"enabled": True, "readsTables": True},
        },
        "profile=production needs serviceAccount.apiAnnotations",
    ),
    "API with the account that may write to the bucket, in production": (
        {
            **BY_IDENTITY,
            "serviceAccount": {"create": False, "name": "writer", "dashboardName": "reader"},
            "api": {"enabled": True, "readsTables": True},
        },
        "profile=production needs serviceAccount.apiAnnotations (apiName where accounts are not made)",
    ),
    "unknown profile": ({"profile": "prod"}, "/profile': value must be one of '', 'production'"),
    "queue of no scheduler": (
        {"jobDefaults": {"batchSchedulerOptions": {"queue": "metering"}}},
        "batchSchedulerOptions is given, but batchScheduler is empty",
    ),
    "route of the dashboard without a gateway": (
        {"dashboard": {"route": {"enabled": True}}},
        "needs dashboard.route.parentRefs",
    ),
    "password in a variable of all": (
        {"extraEnv": [{"name": "PROXY_PASSWORD", "value": "x"}]},
        "extraEnv gives PROXY_PASSWORD as plain text",
    ),
    "budget that would stop a drain": ({"podDisruptionBudgets": {"enabled": True}}, "would stop a drain for ever"),
    "memory for pending rows that its pod has not": (
        {"jobs": {"joins": {"config": {"waiting_memory_mib": 1664}}}},
        "waiting_memory_mib is 1664, but jobs.joins.driver.memoryOverhead, which holds it beside all else, is 1664m",
    ),
    "memory for identities that its pod has not": (
        {"jobs": {"ingestion": {"config": {"identity_memory_mib": 4096}, "driver": {"memoryOverhead": "4g"}}}},
        "identity_memory_mib is 4096, but jobs.ingestion.driver.memoryOverhead, which holds it beside all else, is 4g",
    ),
    "samples that are too rare for the alerts": (
        {"podMonitor": {"enabled": True, "interval": "61s"}, "prometheusRule": {"enabled": True}},
        "podMonitor.interval is 61s, but Weir's alerts need a sample a minute",
    ),
    "samples that are far too rare for the alerts": (
        {"podMonitor": {"enabled": True, "interval": "5m"}, "prometheusRule": {"enabled": True}},
        "podMonitor.interval is 5m, but",
    ),
    "batch with the name of Connect, whose pods its policies would let in": (
        {"batch": {"connect": {"schedule": "@daily", "args": ["a"]}}},
        "batch.connect has the name of another part of Weir",
    ),
    "batch with the name of a job": (
        {"batch": {"joins": {"schedule": "@daily", "args": ["a"]}}},
        "batch.joins has the",
    ),
    "password in a variable": (
        {"jobs": {"joins": {"env": [{"name": "DB_PASSWORD", "value": "x"}]}}},
        "jobs.joins.env gives DB_PASSWORD as plain text",
    ),
    "password of digits in a variable": (
        {"extraEnv": [{"name": "PROXY_PASSWORD", "value": "1234"}]},
        "extraEnv gives PROXY_PASSWORD as plain text",
    ),
    "token of letters in a variable": (
        {"extraEnv": [{"name": "HUB_TOKENS", "value": "a1b2c3"}]},
        "extraEnv gives HUB_TOKENS as plain text",
    ),
    "key of an API in a variable": (
        {"batch": {"ask": {"schedule": "@daily", "args": ["a"], "env": [{"name": "MODEL_API_KEY", "value": "x"}]}}},
        "batch.ask.env gives MODEL_API_KEY as plain text",
    ),
    "password after an argument": (
        {"batch": {"ask": {"schedule": "@daily", "args": ["weir", "--db-password", "hunter2"]}}},
        "batch.ask.args gives password as plain text",
    ),
    "token in an argument": (
        {"batch": {"ask": {"schedule": "@daily", "args": ["bash", "-c", "curl -d token=hunter2 https://a"]}}},
        "batch.ask.args gives token as plain text",
    ),
    "URL of a database in an argument": (
        {"batch": {"ask": {"schedule": "@daily", "args": ["psql", "postgresql://weir:hunter2@db/weir"]}}},
        "batch.ask.args[1] holds a password in a URL as plain text",
    ),
    "URL of a database in a variable of any name": (
        {"dashboard": {"env": [{"name": "SOURCE", "value": "postgresql://:hunter2@db/weir"}]}},
        "dashboard.env[0].value holds a password in a URL",
    ),
    "basic authentication in a URL": (
        {"dashboard": {"prometheusUrl": "https://ada:hunter2@prometheus:9090"}},
        "dashboard.prometheusUrl holds a password in a URL",
    ),
    "connection string with a password": (
        {"extraEnv": [{"name": "SOURCE", "value": "host=db user=weir password=hunter2"}]},
        "extraEnv[0].value holds the password of a database",
    ),
    "password in the query of a URL": (
        {"extraEnv": [{"name": "SOURCE", "value": "postgresql://db/weir?user=weir&password=hunter2"}]},
        "extraEnv[0].value holds the password of a database",
    ),
    "line of JAAS in a Spark setting": (
        {
            "jobs": {
                "ingestion": {
                    "sparkConf": {
                        "spark.kafka.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule "
                        'required username="weir" password="hunter2";'
                    }
                }
            }
        },
        "sasl.jaas.config holds a password in a line of JAAS",
    ),
    "private key in an object": (
        {"extraObjects": [{"kind": "ConfigMap", "data": {"a": "-----BEGIN EC PRIVATE KEY-----\nMHc"}}]},
        "extraObjects[0].data.a holds a private key",
    ),
    "key of AWS in an annotation": (
        {"serviceAccount": {"annotations": {"note": "uses AKIAABCDEFGHIJKLMNOP"}}},
        "serviceAccount.annotations.note holds a key of AWS",
    ),
    "connection string of Azure": (
        {"extraEnv": [{"name": "SOURCE", "value": f"AccountName=weir;AccountKey={'aB3/' * 21}aQ==;EndpointSuffix=a"}]},
        "extraEnv[0].value holds a key of Azure as plain text",
    ),
    "signature in the address of Azure's store": (
        {
            "storage": {
                "kind": "abfs",
                "abfs": {"url": f"abfss://a0@weir.dfs.core.windows.net/x?sv=1&sig={'aB3%2F' * 8}"},
            }
        },
        "storage.abfs.url holds a key of Azure as plain text",
    ),
    "password behind a reference in one argument": (
        {"batch": {"ask": {"schedule": "@daily", "args": ["bash", "-c", "a --token=$TOKEN && b --password=hunter2"]}}},
        "batch.ask.args gives password as plain text",
    ),
    "password after an argument that ends another one": (
        {"batch": {"ask": {"schedule": "@daily", "args": ["psql", "--no-password", "--password", "hunter2"]}}},
        "batch.ask.args gives password as plain text",
    ),
    "key of Azure in a Spark setting": (
        {"jobDefaults": {"hadoopConf": {"fs.azure.account.key.weir.dfs.core.windows.net": "x"}}},
        "jobDefaults.hadoopConf holds fs.azure.account.key",
    ),
    "Secret with its content": (
        {"extraObjects": [{"apiVersion": "v1", "kind": "Secret", "stringData": {"word": "hunter2"}}]},
        "extraObjects[0] is a Secret with its content",
    ),
    "Secret with its content in a template": (
        {"extraObjects": ["kind: ConfigMap\n---\nkind: Secret\nmetadata: {name: '{{ .Chart.Name }}'}\ndata: {a: b}"]},
        "extraObjects[0] is a Secret with its content",
    ),
    "Secret with its content in a list": (
        {
            "extraObjects": [
                {"apiVersion": "v1", "kind": "List", "items": [{"kind": "Secret", "stringData": {"word": "hunter2"}}]}
            ]
        },
        "extraObjects[0] is a Secret with its content",
    ),
    "key in a Spark setting": (
        {"jobDefaults": {"sparkConf": {"spark.hadoop.fs.s3a.access.key": "x"}}},
        "jobDefaults.sparkConf holds spark.hadoop.fs.s3a.access.key",
    ),
}


@pytest.mark.few_in_ci(25)
@pytest.mark.parametrize("case", REFUSED)
def test_a_bad_value_is_refused_with_the_reason(case: str) -> None:
    values, reason = REFUSED[case]
    with pytest.raises(HelmRefused) as refusal:
        render(values={"quickstart": {"enabled": True}, **values})
    assert reason in str(refusal.value)


def lists_of_variables(values: dict[str, Any], place: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The paths of all in values.yaml."""
    for name, value in values.items():
        if name in ("env", "extraEnv"):
            yield (*place, name)
        elif isinstance(value, dict):
            yield from lists_of_variables(value, (*place, name))


def test_a_secret_is_refused_in_every_list_of_variables() -> None:
    defaults = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    places = [*lists_of_variables(defaults)]
    assert len(places) > 4
    for place in places:
        planted: Any = [{"name": "PROXY_PASSWORD", "value": "x"}]
        for name in reversed(place):
            planted = {name: planted}
        with pytest.raises(HelmRefused, match=f"{'.'.join(place)} gives PROXY_PASSWORD as plain text"):
            render(values={"quickstart": {"enabled": True}, **planted})


def test_what_only_refers_to_a_secret_is_taken() -> None:
    argument = "psql postgresql://weir:$(DB_PASSWORD)@db/weir && weir usage --token=$TOKEN --key-password '$KEY'"
    flags = ["--no-password", "weir", "--password", "--host", "db"]
    values: dict[str, Any] = {
        "batch": {
            "ask": {
                "schedule": "@daily",
                "args": ["bash", "-c", argument, "--password", "$(DB_PASSWORD)", "--meter", "input_tokens=2", *flags],
                "env": [
                    {"name": "DB_PASSWORD", "valueFrom": {"secretKeyRef": {"name": "db", "key": "password"}}},
                    {"name": "SSL_KEY", "value": "/etc/tls/tls.key"},
                    {"name": "MAX_TOKENS", "value": "4096"},
                    {"name": "TOKENIZERS_PARALLELISM", "value": "false"},
                    {"name": "AWS_WEB_IDENTITY_TOKEN_FILE", "value": "/var/run/secrets/token"},
                    {"name": "SOURCE", "value": "host=db user=weir password=$(DB_PASSWORD)"},
                    {"name": "OTHER", "value": "postgresql://db/weir?user=weir&password=$(DB_PASSWORD)"},
                    {"name": "MODEL_KEY", "valueFrom": {"secretKeyRef": {"name": "model", "key": "key"}}},
                ],
            }
        },
        "dashboard": {"prometheusUrl": "https://prometheus.example.com:9090/a@b:c"},
        "webhooks": {"mail": {"url": "smtps://weir@mail.example.com:465", "sender": "weir@example.com"}},
        "extraObjects": [{"kind": "ExternalSecret", "spec": {"url": "postgresql://{{ .user }}:{{ .word }}@db/weir"}}],
    }
    assert render(values={"quickstart": {"enabled": True}, **values})


def test_names_of_as_many_bytes_as_events_may_have_are_taken() -> None:
    config: dict[str, Any] = {
        "ingestion": {"clocks": {"device": ["é" * 256, "a" * 512]}},
        "joins": {"completion_timeouts": {"é" * 256: 300, "a" * 512: 300}},
    }
    Jobs.model_validate(config)
    given = {job: {"config": fields} for job, fields in config.items()}
    assert render(values={"quickstart": {"enabled": True}, "jobs": given})


@pytest.mark.parametrize("name", ["", "é" * 257])
def test_a_job_refuses_a_name_of_other_lengths_at_its_start_too(name: str) -> None:
    for config in ({"ingestion": {"clocks": {"device": [name]}}}, {"joins": {"completion_timeouts": {name: 300}}}):
        with pytest.raises(ValidationError, match=f"has {len(name.encode())} bytes, but must have 1 to 512"):
            Jobs.model_validate(config)


def test_memory_that_its_pod_has_is_taken() -> None:
    joins = {"config": {"waiting_memory_mib": 4096}, "driver": {"memoryOverhead": "6g"}}
    assert render(values={"quickstart": {"enabled": True}, "jobs": {"joins": joins}})


@pytest.mark.parametrize(
    ("interval", "is_watched"), [("1m", True), ("60s", True), ("900ms", True), ("60000ms", True), ("5m", False)]
)
def test_samples_that_are_often_enough_or_that_no_alert_reads_are_taken(interval: str, *, is_watched: bool) -> None:
    values = {"podMonitor": {"enabled": True, "interval": interval}, "prometheusRule": {"enabled": is_watched}}
    assert render(values={"quickstart": {"enabled": True}, **values})


def test_every_kind_of_meter_that_the_applications_take_is_taken() -> None:
    meters: dict[str, dict[str, Any]] = {
        "answers": {"unit": "answer", "count": "outcomes", "grace_seconds": 86_400},
        "tokens": {"unit": "token", "sum": "input_tokens"},
        **{kind.value: {"unit": "user", kind.value: "input_tokens", "period": "month"} for kind in Aggregation},
    }
    Jobs.model_validate({job: {"meters": meters} for job in Jobs.model_fields})
    objects = of_kind(render(values={"quickstart": {"enabled": True}, "meters": meters}), "ConfigMap")
    assert json.loads(objects["weir-joins"]["data"]["joins.yaml"])["meters"] == meters


def test_a_cluster_without_the_operator_is_named_in_a_sentence() -> None:
    with pytest.raises(HelmRefused, match="install the Kubeflow Spark Operator first"):
        render("quickstart.yaml", api_versions=("v1/Pod",))


@pytest.mark.parametrize(("part", "kind"), [("podMonitor", "PodMonitor"), ("prometheusRule", "PrometheusRule")])
def test_a_cluster_without_the_prometheus_operator_is_named_in_a_sentence(part: str, kind: str) -> None:
    with pytest.raises(HelmRefused, match=f"does not know {kind}: install the Prometheus Operator first"):
        render("quickstart.yaml", values={part: {"enabled": True}}, api_versions=("v1/Pod", *OPERATOR))


def test_a_cluster_without_the_gateway_api_is_named_in_a_sentence() -> None:
    route = {"enabled": True, "parentRefs": [{"name": "public"}]}
    with pytest.raises(HelmRefused, match="does not know HTTPRoute of"):
        render("quickstart.yaml", values={"api": {"enabled": True, "route": route}}, api_versions=("v1/Pod", *OPERATOR))


def test_a_cluster_with_the_operator_is_accepted() -> None:
    assert render("quickstart.yaml", api_versions=("v1/Pod", *OPERATOR))
