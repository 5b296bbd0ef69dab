"""Downgrades to the schema of an earlier version, as long as nothing is stored that it would misread."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import psycopg
from alembic import command
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError

from jobs.runtime.errors import Refused
from jobs.runtime.postgres.job_roles import remove_policies
from jobs.runtime.postgres.migrator import migrator
from jobs.runtime.postgres.older_releases import withdraw
from jobs.runtime.postgres.ownership import HOLDS_LOCK

OLDEST = "0037"
"""Further back tables lose what later ones need."""

_RUNNING = f"""
SELECT string_agg(job, ', ' ORDER BY job) FROM jobs JOIN pg_locks ON pid = owner_pid AND {HOLDS_LOCK.format(name="job")}
"""


@dataclass(frozen=True)
class Use:
    """What a version before `revision` would bill or read wrongly: `found` is true while it is there.

    It refuses a downgrade, and the start of such a version on this schema (`older_releases`).
    """

    revision: str
    found: str
    sentence: str


@dataclass(frozen=True)
class Loss:
    """What goes with `revision`, though no earlier version misses it: `found` gives a sentence, or no row."""

    revision: str
    found: str


def _appended(cause: str) -> str:
    """Whether an audit has appended usage of this cause; it may have changed no closed window."""
    tables = (f"corrections WHERE cause = '{cause}'", f"stragglers WHERE cause = '{cause}'")
    return " OR ".join(f"EXISTS (SELECT FROM {of})" for of in (*tables, f"audits WHERE corrected ? '{cause}'"))


USES = (
    Use(
        "0145",
        "EXISTS (SELECT FROM analytics_views WHERE is_declared"
        """ AND definition @> '{"measures": [{"aggregate": "gaps"}]}')""",
        "a view measures the time between outcomes: take `gaps` out of `views`, and start analytics once",
    ),
    Use(
        "0132",
        "EXISTS (SELECT FROM catalog.pools WHERE end_month IS NULL OR end_month > first_month)",
        "catalog.pools has, or had, accounts that share a month's total",
    ),
    Use(
        "0112",
        "EXISTS (SELECT FROM webhook_endpoints WHERE kind = 'mail')",
        "there are endpoints of mail: `weir webhooks list` shows them, and `weir webhooks remove` removes one",
    ),
    Use(
        "0111",
        "EXISTS (SELECT FROM webhook_endpoints WHERE kind = 'slack')",
        "there are endpoints of Slack: `weir webhooks list` shows them, and `weir webhooks remove` removes one",
    ),
    Use(
        "0040",
        "EXISTS (SELECT FROM stragglers WHERE contained_quantity <> 0)"
        " OR EXISTS (SELECT FROM usage_windows WHERE price_version <= 0)",
        "usage was billed once by the more specific meter",
    ),
    Use(
        "0040",
        "EXISTS (SELECT FROM jobs WHERE job = 'ingestion' AND config ->> 'shipped_conventions' = 'true')",
        "ingestion runs with shipped_conventions: true",
    ),
    Use(
        "0042",
        "EXISTS (SELECT FROM jobs WHERE job = 'joins' AND config ->> 'best_report_bills' = 'true')",
        "joins runs with best_report_bills: true",
    ),
    Use(
        "0042",
        _appended("restated"),
        "an audit has restated usage by a better report",
    ),
    Use(
        "0043",
        "EXISTS (SELECT FROM catalog.prices WHERE strpos(model, '{\"') > 1 OR right(model, 1) = '*')",
        "catalog.prices has conditions, prefixes of models or aliases",
    ),
    Use("0044", "EXISTS (SELECT FROM taken_back_on_time)", "usage that came on time was replaced"),
    Use(
        "0048",
        "EXISTS (SELECT FROM jobs WHERE job = 'ingestion' AND config #> '{reversal,sources}' <> 'null')",
        "ingestion knows reversals",
    ),
    Use(
        "0048",
        _appended("reversed"),
        "an audit has taken usage back",
    ),
    Use(
        "0051",
        _appended("once_per"),
        "an audit has counted a content once",
    ),
    Use(
        "0051",
        "EXISTS (SELECT FROM jobs WHERE job = 'ingestion' AND config ->> 'contracts' LIKE '%x-weir-unnest%')",
        "ingestion reads several calls from one event",
    ),
    Use(
        "0052",
        "EXISTS (SELECT FROM meters WHERE aggregation IS NOT NULL)",
        "a meter bills whole periods",
    ),
    Use("0119", "EXISTS (SELECT FROM meters WHERE aggregation = 'min')", "a meter bills the least number of a period"),
    Use("0056", "EXISTS (SELECT FROM late_members)", "corrections of whole periods wait for their close"),
    Use(
        "0057",
        "EXISTS (SELECT FROM price_ladders) OR EXISTS (SELECT FROM catalog.prices WHERE terms IS NOT NULL)"
        " OR EXISTS (SELECT FROM catalog.ended_prices WHERE terms IS NOT NULL)",
        "catalog.prices has, or had, prices with tiers or packages",
    ),
    Use("0059", "EXISTS (SELECT FROM invoices)", "invoices were issued"),
    Use(
        "0062",
        _appended("schema_added"),
        "an audit has billed events whose contract came late",
    ),
    Use(
        "0067",
        'EXISTS (SELECT FROM price_ladders WHERE terms LIKE \'{"kind":"plan"%\')'
        " OR EXISTS (SELECT FROM catalog.prices WHERE terms ->> 'kind' = 'plan')"
        " OR EXISTS (SELECT FROM catalog.ended_prices WHERE terms ->> 'kind' = 'plan')",
        "catalog.prices has, or had, terms of plans",
    ),
    Use("0079", "EXISTS (SELECT FROM erasures)", "people were forgotten, and their later events are to be erased"),
    Use(
        "0080",
        "EXISTS (SELECT FROM webhook_deliveries WHERE state = 'waiting')"
        " OR EXISTS (SELECT FROM webhook_events WHERE number > (SELECT queued_to FROM webhook_position))",
        "events wait to be delivered to webhooks",
    ),
    Use(
        "0088",
        "EXISTS (SELECT FROM catalog.prices WHERE starts_with(model, '[\"'))"
        " OR EXISTS (SELECT FROM catalog.ended_prices WHERE starts_with(model, '[\"'))"
        " OR EXISTS (SELECT FROM price_ladders WHERE starts_with(model, '[\"'))",
        "catalog.prices has, or had, prices of several models",
    ),
    Use(
        "0098",
        "EXISTS (SELECT FROM catalog.limits WHERE currency <> '' OR steps <> '{}' OR account = plan)",
        "catalog.limits has limits of money, of each account, or with steps",
    ),
    Use(
        "0108",
        "EXISTS (SELECT FROM catalog.limits WHERE model <> '' OR every IS NOT NULL)",
        "catalog.limits has limits of a model, or that recur",
    ),
    Use(
        "0126",
        "EXISTS (SELECT FROM catalog.limits WHERE starts_with(period, 'PT'))",
        "catalog.limits has limits of a rolling period",
    ),
    Use(
        "0134",
        "EXISTS (SELECT FROM catalog.limits WHERE dimension <> '')",
        "catalog.limits has limits of a dimension",
    ),
    Use(
        "0146",
        "EXISTS (SELECT FROM catalog.limits WHERE meter <> '' AND currency <> '')",
        "catalog.limits has limits of what a meter costs",
    ),
    Use(
        "0146",
        "EXISTS (SELECT FROM rules WHERE rules @? '$.hold.*.above_amount_by_currency')",
        "billing has decided about stragglers by hold.above_amount_by_currency",
    ),
    Use(
        "0146",
        "EXISTS (SELECT FROM jobs WHERE job = 'joins'"
        " AND config @? '$.price_attributes[*].* ? (@.each_unit_once == true && @.of.size() > 1)')",
        "joins runs with bands of prices whose columns count each unit once (each_unit_once: true)",
    ),
    Use(
        "0105",
        "EXISTS (SELECT FROM jobs WHERE job = 'ingestion' AND jsonb_array_length(config -> 'events') > 1)",
        "ingestion reads several topics, and would read one of them: remove the others (`weir topics remove`)",
    ),
    Use(
        "0148",
        "EXISTS (SELECT FROM reader_logins)",
        "reader_logins binds logins to accounts, and each would see what it asks for: drop these logins and their rows",
    ),
)
LOSSES = (
    Loss(
        "0039",
        "SELECT format('who confirmed or is to confirm %s prices far from others', count(*)) FROM catalog.price_jumps"
        " HAVING count(*) > 0",
    ),
    Loss(
        "0050", "SELECT format('%s keys of the API: clients need new ones', count(*)) FROM api_keys HAVING count(*) > 0"
    ),
    Loss(
        "0053",
        """
        SELECT format('the rate limits of %s keys of the API', count(*)) FROM api_keys
        WHERE requests_per_second IS NOT NULL OR events_per_minute IS NOT NULL HAVING count(*) > 0
        """,
    ),
    Loss(
        "0061",
        "SELECT format('%s limits of the catalog: nobody is limited any more', count(*)) FROM catalog.limits"
        " HAVING count(*) > 0",
    ),
    Loss(
        "0072",
        """
        SELECT format('what %s views have measured: after the next upgrade analytics measures all of usage again',
                      count(DISTINCT view))
        FROM analytics_views HAVING count(*) > 0
        """,
    ),
    Loss("0075", "SELECT format('%s entries of the activity log', count(*)) FROM activity_log HAVING count(*) > 0"),
    Loss(
        "0080",
        """
        SELECT format('%s endpoints of webhooks with their secrets, %s dead deliveries, and the log of all deliveries',
                      (SELECT count(*) FROM webhook_endpoints),
                      (SELECT count(*) FROM webhook_deliveries WHERE state = 'dead'))
        WHERE EXISTS (SELECT FROM webhook_endpoints)
        """,
    ),
    Loss(
        "0077",
        "SELECT format('by which catalog %s invoices were made', count(*)) FROM invoices"
        " WHERE activity_number IS NOT NULL HAVING count(*) > 0",
    ),
    Loss(
        "0082",
        """
        SELECT format('what %s views have measured, as they were declared late or more than once: the next upgrade '
                      'removes it', count(DISTINCT view))
        FROM analytics_views AS one
        WHERE first_position > 1
           OR EXISTS (SELECT FROM analytics_views AS other WHERE other.view = one.view AND other.view_id <> one.view_id)
        HAVING count(*) > 0
        """,
    ),
    Loss(
        "0084",
        """
        SELECT format('%s acceptances of lost records (the journal keeps which records, by whom and why), %s of which '
                      'ingestion has not passed yet and will refuse at', count(*),
                      count(*) FILTER (WHERE journalled_at IS NULL))
            || ': an audit of that version reports these records as missing'
        FROM accepted_losses HAVING count(*) > 0
        """,
    ),
    Loss(
        "0092",
        """
        SELECT format('the sums of %s deliveries of webhooks that were removed', sum(deliveries)) FROM webhook_removals
        HAVING count(*) > 0
        """,
    ),
    Loss(
        "0094",
        """
        SELECT format('up to where %s consumers have applied corrections: no alert says who lags until they '
                      'acknowledge again after the next upgrade', count(*))
        FROM correction_consumers HAVING count(*) > 0
        """,
    ),
    Loss(
        "0123",
        """
        SELECT format('up to where accepted events were published in order: those that wait in %s are never, and the '
                      'next upgrade begins with what is accepted from then on', min(topic))
        FROM ordered_events WHERE next_position IS NOT NULL HAVING count(*) > 0
        """,
    ),
    Loss(
        "0146",
        "SELECT format('the codes of %s limits', count(*)) FROM catalog.limits WHERE code <> '' HAVING count(*) > 0",
    ),
    Loss(
        "0134",
        """
        SELECT format('%s changes of thresholds of a dimension: the next upgrade with such a limit decides them again, '
                      'and calls webhooks', count(*))
        FROM threshold_changes WHERE dimension <> '' HAVING count(*) > 0
        """,
    ),
    Loss(
        "0126",
        """
        SELECT format('%s changes of thresholds of a rolling period: the next upgrade with such a limit decides them '
                      'again, and calls webhooks', count(*))
        FROM threshold_changes WHERE starts_with(period, 'PT') HAVING count(*) > 0
        """,
    ),
    Loss(
        "0108",
        """
        SELECT format('%s changes of thresholds of a model: the next upgrade decides them again, and calls webhooks',
                      count(*))
        FROM threshold_changes WHERE model <> '' HAVING count(*) > 0
        """,
    ),
    Loss(
        "0098",
        """
        SELECT format('%s changes of thresholds: the next upgrade decides all again, and calls webhooks', count(*))
        FROM threshold_changes HAVING count(*) > 0
        """,
    ),
    Loss(
        "0101",
        """
        SELECT format('%s watches, and their hits', count(*)) FROM watches WHERE removed_at IS NULL HAVING count(*) > 0
        """,
    ),
    Loss(
        "0103",
        """
        SELECT format('%s changes of matches of patterns: after the next upgrade analytics looks for them from the '
                      'first outcome on that it has not read', count(*))
        FROM pattern_matches HAVING count(*) > 0
        """,
    ),
    Loss(
        "0105",
        """
        SELECT format('who removed topics of events, and why, %s times (the journal keeps which were removed)',
                      count(*))
        FROM topic_removals HAVING count(*) > 0
        """,
    ),
    Loss(
        "0106",
        """
        SELECT format('the outcomes of %s patterns: matches that are not final yet are not found, and final ones are '
                      'not revised, unless `weir rebuild analytics` reads all of usage again', count(*))
        FROM analytics_patterns WHERE is_declared HAVING count(*) > 0
        """,
    ),
    Loss(
        "0106",
        """
        SELECT format('the versions of %s changes of matches: they count from 1 again, so who was called about one '
                      'may know higher versions of it', count(*))
        FROM pattern_matches WHERE version > 1000000 HAVING count(*) > 0
        """,
    ),
    Loss(
        "0118",
        """
        SELECT format('up to where %s consumers with keys of many accounts have applied corrections', count(*))
        FROM correction_consumers WHERE octet_length(consumer) + octet_length(of_accounts) > 2600 HAVING count(*) > 0
        """,
    ),
    Loss(
        "0115",
        """
        SELECT format('which portal tokens were invalidated: those of %s accounts, or single ones, hold again until '
                      'they expire', count(*))
        FROM portal_invalidations WHERE invalidated_at > clock_timestamp() - interval '25 hours' HAVING count(*) > 0
        """,
    ),
)


BATCHES = "0064"
"""Versions before it know no batches of events."""

_LATE_COPIES = """
SELECT until FROM (SELECT %s + make_interval(secs => coalesce(
    (SELECT (config ->> 'dedupe_horizon_seconds')::int FROM jobs WHERE job = 'ingestion'), 35 * 86400
)) AS until) AS of_batches WHERE clock_timestamp() < until
"""
"""Until when a late copy may follow, while it may: as ingestion's configuration says, or its default."""


def downgrade(url: str, revision: str, newest_batch: datetime | None = None) -> list[str]:
    """Bring the schema back to that of an earlier version, in one transaction: wholly or not at all.

    Returns what was lost, a sentence each.

    `revision`: what `alembic_version` had before the upgrade, at the furthest OLDEST. `newest_batch`: when the newest
    batch of events was received. Raises Refused for another revision, while an application runs, and where anything is
    stored that the earlier version would read wrongly.
    """
    with migrator(url) as config:
        connection = config.attributes["connection"]
        scripts = ScriptDirectory.from_config(config)
        options = {"version_table_schema": config.attributes["schema"]}
        applied = MigrationContext.configure(connection, opts=options).get_current_revision()
        reached = _between(scripts, revision, applied)
        driver = connection.connection.driver_connection
        _refuse_running(driver)
        uses = [use.sentence for use in USES if use.revision in reached and _is_found(driver, use)]
        if BATCHES in reached and newest_batch is not None:
            uses += _late_copies(driver, newest_batch)
        if uses:
            raise Refused(f"the version of schema {revision} cannot go on from here: {'; '.join(uses)}")
        lost = [
            row[0] for loss in LOSSES if loss.revision in reached and (row := driver.execute(loss.found).fetchone())
        ]
        remove_policies(driver, config.attributes["schema"])
        withdraw(driver, config.attributes["schema"])
        command.downgrade(config, revision)
    return lost


def _between(scripts: ScriptDirectory, revision: str, applied: str | None) -> set[str]:
    """The revisions to remove. Raises Refused where they are not all after OLDEST."""
    if applied not in scripts.get_heads():
        raise Refused("the database does not have this version's schema, so this version cannot bring it back")
    later = set(_revisions(scripts, OLDEST))
    if revision not in later | {OLDEST}:
        raise Refused(f"{revision!r} is none of the schemas {OLDEST} to {max(later)}")
    return set(_revisions(scripts, revision))


def _revisions(scripts: ScriptDirectory, after: str) -> Iterator[str]:
    try:
        yield from (script.revision for script in scripts.iterate_revisions("head", after))
    except CommandError as error:
        raise Refused(str(error)) from None


def _refuse_running(connection: psycopg.Connection[Any]) -> None:
    (running,) = connection.execute(_RUNNING).fetchone() or (None,)
    if running is not None:
        raise Refused(f"stop the applications first ({running} runs): a driver of this version would write on")


def _is_found(connection: psycopg.Connection[Any], use: Use) -> bool:
    row = connection.execute(f"SELECT {use.found}").fetchone()
    return row is not None and bool(row[0])


def _late_copies(connection: psycopg.Connection[Any], newest_batch: datetime) -> Iterator[str]:
    for (until,) in connection.execute(_LATE_COPIES, [newest_batch]):
        yield (
            "records with several events came, and a late copy of such an event would be billed again until "
            f"{until.astimezone(UTC):%Y-%m-%d %H:%M} UTC (batches: false of ingestion ends them)"
        )
