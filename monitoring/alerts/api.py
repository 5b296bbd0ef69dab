"""Whether the API takes the events that are posted to it, and answers what is read from it."""

from __future__ import annotations

from datetime import timedelta

from monitoring.metrics import EVENT_ROUTES, KEY_LIMITS, ApiRoute
from monitoring.rule_file import Alert, Part, Severity

FAILED_SHARE = 0.05
FAILED_READS_SHARE = 0.05
_POSTS = f'route=~"{"|".join(EVENT_ROUTES)}"'
_READS = f'route!~"{"|".join((*EVENT_ROUTES, ApiRoute.OTHER))}"'

API = (
    Alert(
        "ApiUnavailable",
        Severity.PAGE,
        # Reads do not count: many that succeed must not hide that events are lost.
        f'sum(rate(weir_api_requests_total{{{_POSTS},status="5xx"}}[2m]))'
        f" / sum(rate(weir_api_requests_total{{{_POSTS}}}[2m])) > {FAILED_SHARE}",
        "The API fails to take events",
        "For five minutes {{ $value | humanizePercentage }} of the requests with events have been answered 5xx."
        " Gateways that do not send them again lose their events. The log of the API shows why.",
        timedelta(minutes=5),
        labels={"cause": "errors"},
    ),
    Alert(
        "ApiUnavailable",
        Severity.PAGE,
        "absent(weir_api_pending_records)",
        "The API does not run",
        "For five minutes no API has answered Prometheus. Gateways that do not send their events again lose them. The"
        " end of its log says why.",
        timedelta(minutes=5),
        (Part.API,),
        {"cause": "down"},
    ),
    Alert(
        "ApiUnavailable",
        Severity.PAGE,
        "max(weir_api_ready) < 1",
        "No server of the API is ready",
        "For five minutes no server of the API has been ready, so that nothing reaches one. Gateways that do not send"
        " their events again lose them. /health/ready says what each waits for.",
        timedelta(minutes=5),
        labels={"cause": "unready"},
    ),
    Alert(
        "ApiRefusesTraffic",
        Severity.TICKET,
        f'sum(increase(weir_api_refused_requests_total{{reason!~"{"|".join(KEY_LIMITS)}"}}[2m])) > 0',
        "The API refuses events because it is overloaded",
        "For ten minutes requests have been answered 429, about {{ $value | humanize }} within two minutes. Clients"
        " send them again; if this continues, some give up.",
        timedelta(minutes=10),
    ),
    Alert(
        "ApiReadsFailing",
        Severity.TICKET,
        # Posts do not count: many events that are taken must not hide that nobody can read a bill.
        f'sum(rate(weir_api_requests_total{{{_READS},status="5xx"}}[5m]))'
        f" / sum(rate(weir_api_requests_total{{{_READS}}}[5m])) > {FAILED_READS_SHARE}",
        "The API fails to answer reads",
        "For ten minutes {{ $value | humanizePercentage }} of the reads of usage and bills have been answered 5xx."
        " Nothing is lost, but portals and clients see no numbers. The log of the API says why.",
        timedelta(minutes=10),
    ),
)
