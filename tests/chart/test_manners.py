"""What a platform team asks of any chart: its own accounts, volumes and objects, any name, the same text each time."""

from __future__ import annotations

import re
from typing import Any

import jsonschema
import pytest
import yaml

from tests.chart.crd import application_schema
from tests.chart.helm import (
    CHART,
    VALUES,
    HelmRefused,
    Object,
    application_spec,
    of_kind,
    pod_specs,
    print_anew,
    render,
)
from tests.chart.security import pods_run_restricted

PASSWORD = "sixteenormorechars"
LONGEST_RELEASE = "a-release-whose-name-has-as-many-characters-as-helm-t"
"""53 characters, Helm's limit."""
APPENDED = {
    "SparkApplication": len("-driver"),
    "ScheduledSparkApplication": len("-1234567890123456789"),
    "CronJob": len("-1234567890"),
    "StatefulSet": len("-1234567890"),
    "Job": len("-abcde"),
}
"""Characters that Kubernetes or an operator appends to a name, and uses as a label of at most 63 characters."""


def names(objects: list[Object]) -> set[str]:
    return {f"{document['kind']}/{document['metadata']['name']}" for document in objects}


def accounts(objects: list[Object]) -> set[str]:
    of_pods = {spec["serviceAccountName"] for spec in pod_specs(objects).values() if "serviceAccountName" in spec}
    specs = [spec for document in objects if (spec := application_spec(document))]
    roles = [spec[role] for spec in specs for role in ("driver", "executor")]
    return of_pods | {role["serviceAccount"] for role in roles if "serviceAccount" in role}


def test_accounts_that_are_there_already_are_used_and_none_is_made() -> None:
    given = {"create": False, "name": "pods", "driverName": "drivers", "dashboardName": "page"}
    objects = render("production.yaml", values={"serviceAccount": given})
    assert not of_kind(objects, "ServiceAccount")
    assert accounts(objects) == {"pods", "drivers", "page"}
    assert pod_specs(objects)["Job/weir-setup"]["serviceAccountName"] == "pods"
    bound = {
        subject["name"]: binding["roleRef"]["name"]
        for binding in of_kind(objects, "RoleBinding").values()
        for subject in binding["subjects"]
    }
    assert bound == {"drivers": "drivers", "page": "page"}
    assert set(of_kind(objects, "Role")) == {"drivers", "page"}


def test_an_api_of_accounts_that_are_there_already_has_its_own_or_that_of_the_pods() -> None:
    given = {"create": False, "name": "pods", "driverName": "drivers", "dashboardName": "page"}
    for name, used in (("", "pods"), ("api", "api")):
        objects = render("production.yaml", values={"serviceAccount": {**given, "apiName": name}})
        assert pod_specs(objects)["Deployment/weir-api"]["serviceAccountName"] == used


def test_accounts_of_other_names_are_made_and_used() -> None:
    objects = render("production.yaml", values={"serviceAccount": {"name": "pods"}})
    assert set(of_kind(objects, "ServiceAccount")) == {"pods", "weir-driver", "weir-dashboard", "weir-api"}
    assert accounts(objects) == {"pods", "weir-driver", "weir-dashboard", "weir-api"}


@pytest.mark.parametrize("example", ["production.yaml", "quickstart.yaml"])
def test_every_container_gets_the_variables_and_volumes_of_all(example: str) -> None:
    objects = render(
        example,
        values={
            "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
            "extraVolumes": [{"name": "authority", "configMap": {"name": "authority"}}],
            "extraVolumeMounts": [{"name": "authority", "mountPath": "/etc/authority", "readOnly": True}],
        },
    )
    for name, spec in pod_specs(objects).items():
        assert [volume for volume in spec["volumes"] if volume["name"] == "authority"], name
        for container in [*spec.get("initContainers", []), *spec["containers"]]:
            assert {"name": "HTTPS_PROXY", "value": "http://proxy:3128"} in container["env"], name
            assert [mount for mount in container["volumeMounts"] if mount["name"] == "authority"], name


def test_objects_of_the_users_own_are_part_of_the_release() -> None:
    plain = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "plain"}}
    template = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: '{{ include \"weir.fullname\" . }}-own'}\n"
    objects = render("quickstart.yaml", values={"extraObjects": [plain, template]})
    assert {"plain", "weir-own"} <= set(of_kind(objects, "ConfigMap"))


def test_pods_of_each_part_are_spread_among_themselves() -> None:
    zone = {"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "ScheduleAnyway"}
    own = {**zone, "labelSelector": {"matchLabels": {"team": "metering"}}}
    objects = render("production.yaml", values={"scheduling": {"topologySpreadConstraints": [zone, own]}})
    parts = set()
    for name, spec in pod_specs(objects).items():
        ours, theirs = spec["topologySpreadConstraints"]
        assert theirs == own, name
        parts.add(ours["labelSelector"]["matchLabels"]["app.kubernetes.io/component"])
    assert {"ingestion", "joins", "dashboard", "api", "connect", "setup", "audit", "tidy", "test"} <= parts
    for name in ("driver", "executor"):
        (selector,) = [
            each["labelSelector"]["matchLabels"]
            for each in pod_specs(objects)[f"SparkApplication/weir-joins {name}"]["topologySpreadConstraints"][:1]
        ]
        template = of_kind(objects, "SparkApplication")["weir-joins"]["spec"][name]["template"]
        assert selector.items() <= template["metadata"]["labels"].items()
    (worker,) = of_kind(
        render("strimzi.yaml", values={"scheduling": {"topologySpreadConstraints": [zone]}}), "KafkaConnect"
    ).values()
    (of_strimzi,) = worker["spec"]["template"]["pod"]["topologySpreadConstraints"]
    assert of_strimzi["labelSelector"] == {"matchLabels": {"strimzi.io/cluster": "weir-connect"}}


def test_a_new_version_of_the_secrets_restarts_all_that_reads_them_and_no_version_restarts_nothing() -> None:
    def annotations(values: dict[str, Any]) -> dict[str, Any]:
        objects = render("quickstart.yaml", values=values)
        templates = {name: o["spec"]["driver"]["template"] for name, o in of_kind(objects, "SparkApplication").items()}
        for kind in ("Deployment", "StatefulSet"):
            templates |= {name: o["spec"]["template"] for name, o in of_kind(objects, kind).items()}
        return {name: template["metadata"].get("annotations", {}) for name, template in templates.items()}

    assert not [name for name, found in annotations({}).items() if "weir/secrets" in found]
    versions = {found.get("weir/secrets") for found in annotations({"secretChanges": {"version": "2"}}).values()}
    assert versions == {"2"}


def test_reloader_is_given_the_secrets_of_each_deployment() -> None:
    key = "secret.reloader.stakater.com/reload"
    found = of_kind(render("production.yaml", values={"secretChanges": {"reloader": True}}), "Deployment")
    secrets = {name: deployment["metadata"]["annotations"][key] for name, deployment in found.items()}
    assert secrets["weir-dashboard"] == "postgres-ca,weir-postgres"
    assert secrets["weir-connect"] == "kafka-ca,kafka-credentials,postgres-ca,weir-postgres"
    assert secrets["weir-api"] == secrets["weir-connect"]
    plain = of_kind(render("production.yaml"), "Deployment").values()
    assert not [each for each in plain if "annotations" in each["metadata"]]


def test_reloader_restarts_the_api_when_the_token_of_its_metrics_changes() -> None:
    """Prometheus brings the new one at once."""
    values = {"secretChanges": {"reloader": True}, "podMonitor": {"tokenSecret": "metrics"}}
    api = of_kind(render("production.yaml", values=values), "Deployment")["weir-api"]
    assert "metrics" in api["metadata"]["annotations"]["secret.reloader.stakater.com/reload"].split(",")


def test_executors_by_load_and_batch_schedulers_are_fields_of_the_operator() -> None:
    values = {
        "jobDefaults": {
            "batchScheduler": "yunikorn",
            "batchSchedulerOptions": {"queue": "root.metering", "resources": {"cpu": "4"}},
        },
        "jobs": {"joins": {"dynamicAllocation": {"enabled": True, "minExecutors": 1, "maxExecutors": 8}}},
    }
    applications = of_kind(render("production.yaml", values=values), "SparkApplication")
    for application in applications.values():
        jsonschema.Draft202012Validator(application_schema()).validate(application)
        assert application["spec"]["batchScheduler"] == "yunikorn"
        assert application["spec"]["batchSchedulerOptions"] == {"queue": "root.metering", "resources": {"cpu": "4"}}
    assert applications["weir-joins"]["spec"]["dynamicAllocation"] == {
        "enabled": True,
        "shuffleTrackingEnabled": True,
        "initialExecutors": 1,
        "minExecutors": 1,
        "maxExecutors": 8,
    }
    assert "dynamicAllocation" not in applications["weir-ingestion"]["spec"]


def test_the_dashboard_may_have_a_route_beside_its_ingress_or_instead_of_it() -> None:
    route = {"enabled": True, "parentRefs": [{"name": "public"}], "hostnames": ["weir.example.org"]}
    both = render("production.yaml", values={"dashboard": {"route": route}})
    assert {"Ingress/weir-dashboard", "HTTPRoute/weir-dashboard"} <= names(both)
    alone = render(
        "production.yaml", values={"dashboard": {"route": route, "ingress": {"enabled": False, "path": "/bills"}}}
    )
    assert "Ingress/weir-dashboard" not in names(alone)
    (rule,) = of_kind(alone, "HTTPRoute")["weir-dashboard"]["spec"]["rules"]
    assert rule["matches"] == [{"path": {"type": "PathPrefix", "value": "/bills"}}]
    (container,) = pod_specs(alone)["Deployment/weir-dashboard"]["containers"]
    assert {"name": "STREAMLIT_SERVER_BASE_URL_PATH", "value": "/bills"} in container["env"]
    (backend,) = rule["backendRefs"]
    assert backend["name"] in of_kind(alone, "Service")


@pytest.mark.parametrize("example", ["production.yaml", "quickstart.yaml"])
def test_two_releases_in_one_namespace_share_no_object(example: str) -> None:
    assert not names(render(example, release="one")) & names(render(example, release="two"))
    similar = [names(render(example, release=LONGEST_RELEASE[:-1] + end)) for end in "xy"]
    assert not similar[0] & similar[1]


@pytest.mark.parametrize("example", ["production.yaml", "quickstart.yaml"])
def test_a_release_may_have_the_longest_name_that_helm_takes(example: str) -> None:
    assert len(LONGEST_RELEASE) == 53
    with pytest.raises(HelmRefused, match="53"):
        render(example, release=LONGEST_RELEASE + "s")
    batch = {"batch": {"name-of-16-chars": {"schedule": "@daily", "args": ["weir"]}}}
    runs = {"audit": {"runs": {"name-of-16-chars": {"schedule": "@daily", "args": []}}}}
    objects = render(example, release=LONGEST_RELEASE, values={**batch, **runs})
    for document in objects:
        name = document["metadata"]["name"]
        assert len(name) + APPENDED.get(document["kind"], 0) <= 63, f"{document['kind']}/{name}"
        assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name), name
        for value in document["metadata"].get("labels", {}).values():
            assert len(value) <= 63, value


def test_a_name_that_is_short_enough_stays_as_it_is() -> None:
    assert "SparkApplication/prod-weir-joins" in names(render("quickstart.yaml", release="prod"))
    longest = "a" * 35
    assert f"SparkApplication/{longest}-weir-joins" in names(render("quickstart.yaml", release=longest))


@pytest.mark.parametrize(
    ("example", "values"),
    [("production.yaml", {}), ("quickstart.yaml", {"quickstart": {"password": PASSWORD}})],
)
def test_the_same_values_render_to_the_same_bytes(example: str, values: dict[str, Any]) -> None:
    arguments = ("template", "weir", str(CHART), "--values", str(VALUES / example), "--values", "-")
    assert print_anew(arguments, yaml.safe_dump(values)) == print_anew(arguments, yaml.safe_dump(values))


def test_quickstart_alone_makes_another_password_at_each_render_so_that_a_bare_install_has_one() -> None:
    arguments = ("template", "weir", str(CHART), "--values", str(VALUES / "quickstart.yaml"), "--values", "-")
    assert print_anew(arguments, "{}") != print_anew(arguments, "{}")


def test_nothing_but_quickstarts_secret_looks_at_the_cluster_or_at_chance_or_at_the_time() -> None:
    varies = re.compile(r"\b(lookup|rand[A-Z]\w*|uuidv4|now|gen[A-Z]\w*|date)\b")
    files = [file for file in (CHART / "templates").rglob("*") if file.is_file()]
    actions = {
        file.name: re.findall(r"\{\{-?(?! */\*)(.*?)-?\}\}", file.read_text(encoding="utf-8"), re.DOTALL)
        for file in files
    }
    assert {name for name, found in actions.items() if any(varies.search(action) for action in found)} == {
        "secret.yaml"
    }


def test_quickstarts_password_is_the_one_that_is_given_and_the_reader_does_not_know_the_owners() -> None:
    secret = of_kind(render("quickstart.yaml", values={"quickstart": {"password": PASSWORD}}), "Secret")
    data = {
        key: yaml.safe_load(f"!!binary {value}").decode() for key, value in secret["weir-quickstart"]["data"].items()
    }
    assert data["password"] == PASSWORD
    assert data["url"] == f"postgresql://weir:{PASSWORD}@weir-postgres:5432/weir"
    assert PASSWORD not in data["dashboard-password"] + data["dashboard-url"]
    assert data["dashboard-password"] in data["dashboard-url"]


def test_quickstart_takes_a_secret_that_exists() -> None:
    objects = render("quickstart.yaml", values={"quickstart": {"existingSecret": "sealed"}})
    assert not of_kind(objects, "Secret")
    for name in ("StatefulSet/weir-postgres", "Deployment/weir-dashboard", "SparkApplication/weir-joins driver"):
        (container,) = pod_specs(objects)[name]["containers"]
        keys = [
            variable["valueFrom"]["secretKeyRef"]["name"]
            for variable in container["env"]
            if "Ref" in str(variable) and "secretKeyRef" in variable["valueFrom"]
        ]
        assert keys == ["sealed"], name


def test_setup_may_be_a_plain_job_that_is_another_one_whenever_it_does_something_else() -> None:
    def setup(**values: Any) -> Object:
        objects = render("quickstart.yaml", values={"setup": {"hook": False}, **values})
        (job,) = of_kind(objects, "Job").values()
        return job

    plain = setup()
    assert plain["metadata"]["annotations"] == {"argocd.argoproj.io/sync-wave": "-1"}
    assert setup()["metadata"]["name"] == plain["metadata"]["name"]
    assert setup(image={"tag": "9.9.9"})["metadata"]["name"] != plain["metadata"]["name"]
    assert setup(commonLabels={"team": "other"})["metadata"]["name"] == plain["metadata"]["name"]


def test_what_a_plain_setup_needs_comes_in_the_same_wave() -> None:
    objects = render("quickstart.yaml", values={"setup": {"hook": False}, "quickstart": {"password": PASSWORD}})
    early = {
        f"{document['kind']}/{document['metadata']['name']}"
        for document in objects
        if document["metadata"].get("annotations", {}).get("argocd.argoproj.io/sync-wave") == "-1"
    }
    servers = {f"{kind}/weir-{name}" for kind in ("Service", "StatefulSet") for name in ("kafka", "postgres")}
    (job,) = of_kind(objects, "Job")
    needed = {*servers, "ServiceAccount/weir", "Secret/weir-quickstart", "NetworkPolicy/weir-setup"}
    assert early == {*needed, f"Job/{job}"}


def test_kubernetes_has_no_version_that_is_too_new() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert chart["kubeVersion"] == ">=1.27.0-0"


def test_the_user_of_pods_is_the_images_or_left_to_the_platform() -> None:
    for example in ("production.yaml", "quickstart.yaml"):
        by_image, by_platform = (pod_specs(render(example, values=v)) for v in ({}, {"podUser": "platform"}))
        named = {"runAsUser": 185, "runAsGroup": 185, "fsGroup": 185}
        for pod, spec in by_image.items():
            assert named.items() <= spec["securityContext"].items(), pod
            assert by_platform[pod]["securityContext"] == {
                name: value for name, value in spec["securityContext"].items() if name not in named
            }
        assert list(pods_run_restricted(render(example, values={"podUser": "platform"}))) == []
