"""The sender of webhooks is off by default; it reaches Postgres and its endpoints' ports, and nothing reaches it."""

from __future__ import annotations

import pytest

from tests.chart.flows import OUTSIDE, STRANGER, may, pods
from tests.chart.helm import HelmRefused, of_kind, pod_specs, render
from webhooks.mail import MailServer

ON = {"webhooks": {"enabled": True, "ports": [443, 8443]}}


def test_it_is_off_by_default() -> None:
    assert "weir-webhooks" not in of_kind(render("production.yaml"), "Deployment")


def test_it_reaches_postgres_and_the_ports_of_endpoints_alone() -> None:
    objects = render("production.yaml", values=ON)
    sender = pods(objects)["webhooks"]
    reached = {port for port in (22, 80, 443, 5432, 8443, 9092, 9093) if may(objects, sender, OUTSIDE, port)}
    assert reached == {443, 5432, 8443}
    assert not any(may(objects, STRANGER, sender, port) for port in (22, 443, 8080, 8090))


def test_private_addresses_are_called_only_where_that_was_asked_for() -> None:
    for allows in (False, True):
        objects = render("production.yaml", values={"webhooks": {"enabled": True, "allowPrivate": allows}})
        (container,) = pod_specs(objects)["Deployment/weir-webhooks"]["containers"]
        found = {each["name"]: each.get("value") for each in container["env"]}
        assert found["WEIR_WEBHOOKS_ALLOW_PRIVATE"] == str(allows).lower()
        assert container["args"] == ["python", "-m", "webhooks"]


def test_mail_is_handed_to_the_server_that_is_named_with_a_password_from_its_secret() -> None:
    mail = {"url": "smtps://weir@mail.example.com", "sender": "weir@example.com", "existingSecret": "smtp"}
    objects = render("production.yaml", values={"webhooks": {"enabled": True, "mail": mail}})
    (container,) = pod_specs(objects)["Deployment/weir-webhooks"]["containers"]
    found = {each["name"]: each for each in container["env"] if each["name"].startswith("WEIR_SMTP_")}
    password = found.pop("WEIR_SMTP_PASSWORD")
    assert password["valueFrom"] == {"secretKeyRef": {"name": "smtp", "key": "password"}}
    assert MailServer.of({name: each["value"] for name, each in found.items()} | {"WEIR_SMTP_PASSWORD": "x"})
    objects = render("production.yaml", values=ON)
    (container,) = pod_specs(objects)["Deployment/weir-webhooks"]["containers"]
    assert not [each for each in container["env"] if each["name"].startswith("WEIR_SMTP_")]


@pytest.mark.parametrize(
    ("url", "port"),
    [("smtps://mail.example.com", 465), ("smtp://mail.example.com", 587), ("smtp://mail.example.com:2525", 2525)],
)
def test_the_port_of_the_mail_server_is_open_beside_those_of_endpoints(url: str, port: int) -> None:
    mail = {"url": url, "sender": "weir@example.com"}
    objects = render("production.yaml", values={"webhooks": {**ON["webhooks"], "mail": mail}})
    reached = {to for to in (25, 443, 465, 587, 2525, 8443) if may(objects, pods(objects)["webhooks"], OUTSIDE, to)}
    assert reached == {443, 8443, port}


@pytest.mark.parametrize(
    ("mail", "sentence"),
    [
        ({"url": "smtps://weir:s3cret@mail.example.com", "existingSecret": "smtp"}, "does not match pattern"),
        ({"url": "https://mail.example.com"}, "does not match pattern"),
        ({"url": "smtps://mail.example.com", "sender": ""}, "needs webhooks.mail.sender"),
        ({"url": "smtps://weir@mail.example.com"}, "must name a user"),
        ({"url": "smtps://mail.example.com", "existingSecret": "smtp"}, "must name a user"),
    ],
)
def test_what_the_sender_would_refuse_at_its_start_is_refused_before(mail: dict[str, str], sentence: str) -> None:
    values = {"webhooks": {"enabled": True, "mail": {"sender": "weir@example.com", **mail}}}
    with pytest.raises(HelmRefused, match=sentence):
        render("production.yaml", values=values)
