"""Usage that has no price or a doubtful one, or comes too late for its bill; changes that followers do not get."""

from __future__ import annotations

from datetime import timedelta

from metering.reports import CATALOG_BEHIND_SECONDS, ORDERED_BEHIND_SECONDS
from monitoring.alerts.rises import counted
from monitoring.rule_file import Alert, Part, Severity

DROPPED_MONEY = 1
"""In units of its currency, within an hour."""
EXPIRE_SECONDS = 86_400
UNSENT_SECONDS = 600
UNACKNOWLEDGED_SECONDS = 86_400
UNMETERED_SHARE = 0.01
"""Of the usage of half an hour: requests that were cancelled may well have no tokens, but they are few."""


def listed(query: str, value: str) -> str:
    """The meters that a query gives, in an annotation: one alert, however many there are."""
    meters = f'{{{{ range query `{query}` | sortByLabel "meter" }}}}'
    return f"{meters} {{{{ .Labels.meter }}}} ({value}){{{{ end }}}}"


def unmetered_share() -> str:
    """Rows without a quantity, of all that billing read: both are counted with the same batch."""
    rows = "sum by (meter) (increase(weir_unmetered_usage_rows_total[30m]))"
    return f'{rows} / on () group_left () sum(increase(weir_batch_records_total{{job="billing"}}[30m]))'


MONEY = (
    Alert(
        "StragglersDropped",
        Severity.TICKET,
        counted('weir_stragglers_total{decision="drop"}', 15, labels="meter"),
        "Stragglers are dropped from {{ $labels.meter }}",
        "About {{ $value | humanize }} usage rows within 15 minutes came after grace and are on no bill, because "
        "late_policy is drop, or no decision was made in time. `weir stragglers` lists them.",
    ),
    Alert(
        "StragglersExpire",
        Severity.TICKET,
        f"min by (meter) (weir_straggler_deadline_seconds) < {EXPIRE_SECONDS}",
        "Stragglers of {{ $labels.meter }} wait for a decision",
        "For the first of them hold.expires decides in {{ $value | humanizeDuration }}: by default it is on no bill. "
        "`weir stragglers --decision hold` lists what waits; `weir stragglers approve` or `reject` decides.",
    ),
    Alert(
        "DroppedMoney",
        Severity.PAGE,
        'sum by (currency) (max by (meter, currency) (weir_straggler_amount{decision="drop"}))'
        ' - sum by (currency) (min by (meter, currency) (min_over_time(weir_straggler_amount{decision="drop"}[1h])))'
        f" > {DROPPED_MONEY}",
        "Money is dropped with stragglers",
        "{{ $value | humanize }} {{ $labels.currency }} of the last hour will be on no bill."
        " If it should be, set late_policy to correct, or hold, and decide in time.",
    ),
    Alert(
        "UnpricedUsage",
        Severity.TICKET,
        counted("weir_unpriced_usage_rows_total", 15),
        "Usage has no price",
        "About {{ $value | humanize }} usage rows within 15 minutes match no price, so they have no amount:"
        + listed(counted("weir_unpriced_usage_rows_total", 15, labels="meter"), "{{ .Value | humanize }}")
        + ". Add the prices with `weir catalog apply`; the next audit bills earlier usage.",
    ),
    Alert(
        "UnmeteredUsage",
        Severity.TICKET,
        f"max({unmetered_share()}) > {UNMETERED_SHARE}",
        "Usage without quantities bills nothing",
        "Within half an hour up to {{ $value | humanizePercentage }} of the usage lacked a quantity that its meter"
        " expects:"
        + listed(f"{unmetered_share()} > {UNMETERED_SHARE}", "{{ .Value | humanizePercentage }}")
        + ". Ask the gateways why they report no tokens.",
        timedelta(minutes=10),
    ),
    Alert(
        "PriceJump",
        Severity.TICKET,
        "max(weir_price_jumps) > 0",
        "Prices are 100 times above or below another",
        "{{ $value }} prices were stored with SQL and are in effect, but not confirmed."
        " `weir catalog jumps` lists them; correct each, or confirm it with `weir catalog confirm-price`.",
    ),
    Alert(
        "CatalogNotCaptured",
        Severity.PAGE,
        f"max(weir_catalog_behind_seconds) > {CATALOG_BEHIND_SECONDS} < +Inf",
        "Changes of the catalog do not arrive",
        "What was changed in accounts, plans and prices {{ $value | humanizeDuration }} ago may not be in Kafka:"
        " usage is priced as before. `weir status` and the log of Kafka Connect say why.",
        timedelta(minutes=2),
    ),
    Alert(
        "CatalogNeverCaptured",
        Severity.PAGE,
        "max(weir_catalog_behind_seconds) == +Inf",
        "Changes of the catalog never arrived",
        "No connector has captured accounts, plans and prices yet: nothing that was changed is in Kafka."
        " `weir status` and the log of Kafka Connect say why.",
        timedelta(minutes=2),
        (Part.CONNECT,),
    ),
    Alert(
        "CatalogChangesRejected",
        Severity.PAGE,
        counted('weir_events_total{disposition="rejected",reason="invalid_catalog_change"}', 10),
        "Changes of the catalog are rejected",
        "About {{ $value | humanize }} changes of accounts, plans or prices within 10 minutes could not be read:"
        " usage is priced as before. `weir dead-letters --reason invalid_catalog_change` says what is wrong with each.",
    ),
    Alert(
        "DeletionsNotPropagated",
        Severity.TICKET,
        "max(weir_unpropagated_deletions) > 0",
        "Usage is priced with rows that were deleted from the catalog",
        "{{ $value }} accounts and prices were deleted while a replication slot was lost, so joins still has them."
        " `weir catalog reconcile` deletes them once more.",
        timedelta(minutes=5),
    ),
    Alert(
        "CorrectionsUnacknowledged",
        Severity.TICKET,
        f"max(weir_corrections_unacknowledged_seconds) > {UNACKNOWLEDGED_SECONDS}",
        "A consumer has not acknowledged corrections",
        "The oldest correction that a consumer has not acknowledged is {{ $value | humanizeDuration }} old, so its"
        " numbers differ from the bills. `weir consumers list` shows which.",
    ),
    Alert(
        "PublishingBehind",
        Severity.TICKET,
        f"max by (topic) (weir_unsent_seconds) > {UNSENT_SECONDS}",
        "The topic {{ $labels.topic }} gets no changes",
        "What changed {{ $value | humanizeDuration }} ago is not in Kafka yet. Bills are right; the log of billing says"
        " what it waits for.",
        timedelta(minutes=1),
    ),
    # After a standstill the frontier leaps, and the topic follows with its next move: up to two minutes later.
    Alert(
        "OrderedEventsBehind",
        Severity.TICKET,
        f"max(weir_ordered_events_behind_seconds) > {ORDERED_BEHIND_SECONDS}",
        "The topic events.ordered gets no events",
        "The frontier has passed events by {{ $value | humanizeDuration }} that are not on the topic yet. Nothing is"
        " lost and bills are right; the log of billing says what it waits for.",
        timedelta(minutes=5),
    ),
)
