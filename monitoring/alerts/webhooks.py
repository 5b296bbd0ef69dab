"""Other systems that are not called about what concerns them."""

from __future__ import annotations

from datetime import timedelta

from monitoring.rule_file import Alert, Severity

WAITING_SECONDS = 3_600
"""An endpoint that failed four times has waited a little more than half an hour for the fifth attempt."""

WEBHOOKS = (
    Alert(
        "WebhooksWait",
        Severity.TICKET,
        f"max(weir_webhook_waiting_seconds) > {WAITING_SECONDS}",
        "Webhooks are not delivered",
        "The oldest event that an endpoint has not taken is {{ $value | humanizeDuration }} old. `weir webhooks list`"
        " shows which endpoint; if all wait, no sender runs.",
        timedelta(minutes=5),
    ),
    Alert(
        "WebhooksDead",
        Severity.TICKET,
        "max(weir_webhook_dead_deliveries) > 0",
        "Webhooks were given up",
        "{{ $value }} deliveries failed ten times. Fix the receiver, and send them again with"
        " `weir webhooks resend ENDPOINT --dead`; otherwise they are removed after 90 days.",
    ),
    Alert(
        "WebhookEndpointGone",
        Severity.TICKET,
        "max(weir_webhook_gone_endpoints) > 0",
        "An endpoint of webhooks has answered 410 and is disabled",
        "{{ $value }} endpoints answered 410, so they get no events. `weir webhooks enable ENDPOINT` calls one again;"
        " what happened meanwhile is not sent.",
    ),
)
