"""`weir webhooks`: endpoints are rows that people change, so the activity log has them, without a secret."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from cli.main import app
from tests.webhooks.sending import hold, rows
from webhooks.endpoints import COLUMNS, DELIVERY_COLUMNS
from webhooks.event_types import EventType

URL = "https://example.com/hook"


@pytest.fixture
def weir(database: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("deployment.stack.running_deployment", lambda _: SimpleNamespace(postgres_url=database))

    def run(*words: str) -> Result:
        return CliRunner().invoke(app, list(words), env={"COLUMNS": "200"})

    return run


def added(weir: Any, *words: str) -> dict[str, str]:
    made: dict[str, str] = json.loads(weir("webhooks", "add", URL, "--by", "ada", "--format", "json", *words).stdout)
    return made


def listed(weir: Any, *words: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(weir(*words, "--format", "json").stdout)
    return found


def test_an_endpoint_is_added_listed_rotated_disabled_and_enabled(weir: Any, database: str) -> None:
    made = added(weir, "--account", "acme", "--event", "weir.straggler.held", "--note", "billing")
    assert made["verifies_with"].startswith("whsec_")
    (row,) = listed(weir, "webhooks", "list")
    assert set(row) == set(COLUMNS)
    assert (row["endpoint"], row["url"], row["events"], row["accounts"], row["state"], row["waiting"]) == (
        *(made["endpoint"], URL, "weir.straggler.held", "acme", "enabled", 0),
    )
    endpoint = made["endpoint"]
    rotated = json.loads(weir("webhooks", "rotate", endpoint, "--by", "bob", "--format", "json").stdout)
    assert rotated["verifies_with"] != made["verifies_with"]
    assert rows(database, "SELECT count(*)::int, count(expires_at)::int FROM webhook_secrets") == [(2, 1)]
    hold(database, ["acme"])
    (delivery,) = listed(weir, "webhooks", "deliveries", endpoint)
    assert set(delivery) == set(DELIVERY_COLUMNS)
    assert (delivery["state"], delivery["attempts"], delivery["account"]) == ("waiting", 0, "acme")
    assert listed(weir, "webhooks", "attempts", endpoint, str(delivery["number"])) == []
    assert "was not for" in str(weir("webhooks", "attempts", endpoint, "999").exception)
    assert "is changed" in weir("webhooks", "change", endpoint, "--url", f"{URL}2", "--note", "", "--by", "bob").stdout
    assert weir("webhooks", "change", endpoint, "--url", "https://10.0.0.1/").exit_code == 2
    assert weir("webhooks", "change", endpoint).exit_code == 2
    (row,) = listed(weir, "webhooks", "list")
    assert (row["url"], row["note"], row["events"], row["changed_by"]) == (
        f"{URL}2",
        None,
        "weir.straggler.held",
        "bob",
    )
    assert "is disabled" in weir("webhooks", "disable", endpoint, "--reason", "moves", "--by", "bob").stdout
    assert listed(weir, "webhooks", "list")[0]["disabled_reason"] == "moves"
    assert "1 deliveries wait" in weir("webhooks", "enable", endpoint, "--by", "eve").stdout
    removed = weir("webhooks", "remove", endpoint, "--by", "eve").stdout
    assert removed == f"{endpoint} is removed, with its deliveries: 1 waiting, 0 delivered, 0 dead.\n"
    assert listed(weir, "webhooks", "list") == []
    (last, *_) = listed(weir, "activity", "--target", "weir.webhook_endpoints")
    assert (last["action"], last["made_by"]) == ("delete", "eve")


def test_who_changed_an_endpoint_is_in_the_activity_log_and_no_secret_is(weir: Any, database: str) -> None:
    made = added(weir)
    weir("webhooks", "rotate", made["endpoint"], "--by", "bob")
    weir("webhooks", "disable", made["endpoint"], "--reason", "moves", "--by", "eve")
    of_endpoints = listed(weir, "activity", "--target", "weir.webhook_endpoints")
    of_secrets = listed(weir, "activity", "--target", "weir.webhook_secrets")
    assert [(entry["action"], entry["made_by"]) for entry in of_endpoints] == [("update", "eve"), ("insert", "ada")]
    assert {(entry["action"], entry["made_by"]) for entry in of_secrets} == {
        *(("insert", "bob"), ("update", "bob"), ("insert", "ada")),
    }
    secrets = [secret for (secret,) in rows(database, "SELECT secret FROM webhook_secrets")]
    log = json.dumps([*of_endpoints, *of_secrets])
    assert len(secrets) == 2
    assert not any(secret in log for secret in secrets)


def test_a_pause_that_a_receiver_asked_for_is_no_act_of_a_person(weir: Any, database: str) -> None:
    added(weir)
    rows(database, "UPDATE webhook_endpoints SET paused_until = now() RETURNING 1")
    assert len(listed(weir, "activity", "--target", "weir.webhook_endpoints")) == 1


def test_a_key_pair_gives_its_public_key_and_no_command_prints_the_private_one(weir: Any, database: str) -> None:
    made = added(weir, "--asymmetric")
    assert made["verifies_with"].startswith("whpk_")
    ((secret,),) = rows(database, "SELECT secret FROM webhook_secrets")
    assert secret.startswith("whsk_")
    shown = weir("webhooks", "list").stdout + weir("webhooks", "rotate", made["endpoint"]).stdout
    assert "whsk_" not in shown
    assert "whpk_" in shown


@pytest.mark.parametrize("url", ["http://example.com/", "https://10.0.0.1/", "https://[::1]/", "nonsense"])
def test_a_url_that_is_never_called_is_refused(weir: Any, url: str) -> None:
    refused = weir("webhooks", "add", url)
    assert refused.exit_code == 2
    assert listed(weir, "webhooks", "list") == []


def test_a_url_of_slack_is_no_webhook_in_which_it_would_be_shown(weir: Any, database: str) -> None:
    url = "https://hooks.slack.com/services/T000/B000/SECRET"
    refused = weir("webhooks", "add", url)
    assert refused.exit_code == 2
    assert "SECRET" not in refused.output
    assert "--kind: It must be slack for this URL" in refused.output
    assert rows(database, "SELECT * FROM webhook_endpoints") == []
    assert weir("webhooks", "add", url, "--kind", "slack").exit_code == 0
    assert "SECRET" not in weir("webhooks", "list", "--format", "json").stdout


def test_an_endpoint_that_would_never_be_called_is_refused(weir: Any, database: str) -> None:
    of_acme = ("--account", "acme", "--event", EventType.SOURCE_SILENT, "--event", EventType.WATCH_HIT)
    refused = weir("webhooks", "add", URL, *of_acme)
    assert refused.exit_code == 2
    assert "of no account" in refused.output
    assert weir("webhooks", "add", URL, *of_acme, "--event", EventType.INVOICE_ISSUED).exit_code == 0
    assert weir("webhooks", "add", URL, *of_acme[2:]).exit_code == 0


def test_what_is_to_be_sent_again_must_be_named(weir: Any) -> None:
    endpoint = added(weir)["endpoint"]
    assert weir("webhooks", "resend", endpoint).exit_code == 2
    assert weir("webhooks", "resend", endpoint, "1", "--dead").exit_code == 2
    assert weir("webhooks", "resend", endpoint, "--dead").stdout == "0 deliveries are sent again.\n"
    assert "Not all of these were for" in str(weir("webhooks", "resend", endpoint, "7").exception)
