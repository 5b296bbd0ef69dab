"""Viewers sign in to the dashboard where the chart says so: what its pod is given, and where it may go."""

from __future__ import annotations

from typing import Any

import pytest

from api.bearer_tokens import TokenIssuer
from api.server import issuer_in
from dashboard.sign_in import SignIn
from tests.chart.flows import OUTSIDE, may, pods
from tests.chart.helm import HelmRefused, of_kind, render

SIGN_IN: dict[str, Any] = {
    "enabled": True,
    "metadataUrl": "https://login.example.com:8443/.well-known/openid-configuration",
    "clientId": "weir",
    "existingSecret": "weir-sign-in",
    "redirectUri": "https://weir.example.com/oauth2callback",
}


def environment(values: dict[str, Any]) -> dict[str, Any]:
    (container,) = of_kind(render("quickstart.yaml", values=values), "Deployment")["weir-dashboard"]["spec"][
        "template"
    ]["spec"]["containers"]
    return {variable["name"]: variable.get("value", variable.get("valueFrom")) for variable in container["env"]}


def test_the_dashboard_gets_all_that_sign_in_needs_and_its_secrets_from_a_secret() -> None:
    given = environment({"dashboard": {"signIn": SIGN_IN}})
    for name, key in {"WEIR_OIDC_CLIENT_SECRET": "client-secret", "WEIR_OIDC_COOKIE_SECRET": "cookie-secret"}.items():
        assert given[name] == {"secretKeyRef": {"name": "weir-sign-in", "key": key}}
        given[name] = "x"
    sign_in = SignIn.of({name: value for name, value in given.items() if isinstance(value, str)})
    assert sign_in is not None
    assert (sign_in.metadata_url, sign_in.accounts_claim, sign_in.hours) == (
        *(SIGN_IN["metadataUrl"], "weir_accounts"),
        12,
    )


def test_without_sign_in_the_dashboard_gets_nothing_of_it() -> None:
    assert not [name for name in environment({}) if name.startswith("WEIR_OIDC")]


@pytest.mark.parametrize("kind", ["NodePort", "LoadBalancer"])
@pytest.mark.parametrize("allowed", [{"signIn": SIGN_IN}, {"withoutSignIn": True}])
def test_a_service_that_others_reach_needs_sign_in_or_an_explicit_yes(kind: str, allowed: dict[str, Any]) -> None:
    services = of_kind(
        render("quickstart.yaml", values={"dashboard": {"service": {"type": kind}, **allowed}}), "Service"
    )
    assert services["weir-dashboard"]["spec"]["type"] == kind


def test_only_with_sign_in_may_the_dashboard_reach_the_identity_provider() -> None:
    for values, reaches in (({}, False), ({"dashboard": {"signIn": SIGN_IN}}, True)):
        objects = render("quickstart.yaml", values=values)
        assert may(objects, pods(objects)["dashboard"], OUTSIDE, 8443) is reaches


OIDC = {"issuer": "https://login.example.com:8443/realms/main", "audience": "weir-api"}


def test_the_api_takes_tokens_of_the_issuer_that_is_named_and_may_reach_it() -> None:
    for oidc, reaches in (({}, False), (OIDC, True)):
        objects = render("quickstart.yaml", values={"api": {"enabled": True, "oidc": oidc}})
        (container,) = of_kind(objects, "Deployment")["weir-api"]["spec"]["template"]["spec"]["containers"]
        issuer = issuer_in({variable["name"]: variable.get("value", "") for variable in container["env"]})
        assert issuer == (TokenIssuer(**OIDC) if oidc else None)
        assert may(objects, pods(objects)["api"], OUTSIDE, 8443) is reaches


def test_an_issuer_without_an_audience_is_refused() -> None:
    with pytest.raises(HelmRefused, match=r"api\.oidc\.issuer needs api\.oidc\.audience"):
        render("quickstart.yaml", values={"api": {"enabled": True, "oidc": {"issuer": OIDC["issuer"]}}})
