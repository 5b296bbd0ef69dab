"""Roles of the database for each application: each may write its own tables, and no other's.

They are opt-in: an administrator makes those that are wanted (docs/how-to/database-roles.md), and each migration grants
to the ones that exist. A login is a member of its application's role, or the role itself may log in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from jobs.runtime.postgres.relations import CATALOG, OWN, SECRET


@dataclass(frozen=True)
class JobRole:
    """What a role may do beside reading: all roles read what the dashboard's role reads, of all accounts.

    Relations without a schema are of Weir's own.
    """

    jobs: tuple[str, ...] = ()
    """Of BY_JOB it writes the rows of these applications."""
    writes: tuple[str, ...] = ()
    appends: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    """Of what the dashboard's role does not see."""
    locks: tuple[str, ...] = ()
    """Tables that it locks, or rows of, and cannot change: row-level security refuses what an update makes of a row."""
    uses: tuple[str, ...] = ()
    """Sequences."""


BY_JOB = ("attempts", "batches", "bookkeeping", "exits", "jobs", "positions", "rules")
"""Tables of all applications, with a row's application in the column `job`."""
_CALLS = ("webhook_events",)
_CALLED = ("webhook_endpoints",)
_DECLARES = ("meters",)
"""Each driver stores at its start which meters its configuration declares: the applications start in any order."""

ROLES: Mapping[str, JobRole] = {
    "weir_ingestion": JobRole(
        jobs=("ingestion",),
        writes=(
            *_DECLARES,
            *("accepted_losses", "dead_letter_minutes", "dead_letter_spikes", "isolated_records", "restamps"),
            *("silent_sources", "sources", "topic_removals", "unknown_types"),
            *("catalog.effective_prices_due", "catalog.effective_prices_now", "catalog.effective_prices_progress"),
        ),
        appends=_CALLS,
        reads=("erasures", *_CALLED),
    ),
    "weir_joins": JobRole(jobs=("joins",), writes=_DECLARES, appends=("price_ladders",), reads=("erasures",)),
    "weir_billing": JobRole(
        jobs=("billing",),
        writes=(
            *_DECLARES,
            *("corrections", "late_members", "limited_dimensions"),
            *("ordered_events", "publications", "stragglers", "taken_back_on_time", "threshold_changes"),
            *("thresholds_due", "unsent_windows", "usage_day_dimensions", "usage_days", "usage_hours"),
            *("usage_dimensions", "usage_members", "usage_months", "usage_windows"),
        ),
        appends=_CALLS,
        # Its gauges count webhooks that wait, and those that nobody took.
        reads=("erasures", "webhook_deliveries", "webhook_position", *_CALLED),
        locks=("erasures",),
        uses=("settled_stragglers",),
    ),
    "weir_sessionization": JobRole(
        jobs=("sessionization",), writes=(*_DECLARES, "session_gaps", "sessions"), reads=("erasures",)
    ),
    "weir_analytics": JobRole(
        jobs=("analytics",),
        writes=(
            *_DECLARES,
            *("analytics_panes", "analytics_patterns", "analytics_views", "pattern_matches"),
            *("pattern_outcomes", "watch_calls", "watch_hits", "watch_hours", "watch_progress"),
            "watches",
        ),
        appends=_CALLS,
        reads=("erasures", *_CALLED),
    ),
    "weir_compact": JobRole(),
    # It asks whether analytics runs, and locks its row meanwhile.
    "weir_retain": JobRole(
        locks=("jobs",),
        writes=(
            *("analytics_panes", "analytics_patterns", "analytics_views", "batches", "exits", "isolated_records"),
            *("pattern_matches", "pattern_outcomes", "portal_invalidations", "sessions", "sources"),
            *("threshold_changes", "watch_calls", "watch_hits", "watch_hours", "webhook_attempts"),
            *("webhook_deliveries", "webhook_events", "webhook_removals"),
        ),
        reads=("webhook_endpoints", "webhook_position"),
    ),
    # `helm test` gives a plan, an account and a price of its own.
    "weir_test": JobRole(
        writes=(*(f"catalog.{name}" for name in ("accounts", "limits", "plans", "prices")), "catalog_outbox")
    ),
}
"""The one table of grants. Setup, audits, closes, rebuilds and commands of people write as the owner."""

READ_POLICY, WRITE_POLICY, LOCK_POLICY, EVERYBODY_READS = "jobs_read", "jobs_write", "jobs_lock", "reads_everything"
_EXISTING = "SELECT rolname FROM pg_roles WHERE rolname = ANY (%s) ORDER BY 1"
_RELATIONS = """
SELECT relname, relrowsecurity FROM pg_class
WHERE relnamespace = %s::regnamespace AND relname = ANY (%s) AND relkind IN ('r', 'p', 'v') ORDER BY 1
"""
_POLICIES = """
SELECT policyname, cmd, roles::text[] FROM pg_policies WHERE schemaname = %s AND tablename = %s
"""


@dataclass(frozen=True)
class _Policy:
    """`roles` empty: everybody. `job` empty: all rows."""

    name: str
    command: str
    roles: tuple[str, ...]
    job: tuple[str, ...] = ()

    def create(self, relation: sql.Composable) -> sql.Composed:
        rows = sql.SQL("job = ANY ({})").format(sql.Literal(list(self.job))) if self.job else sql.SQL("true")
        roles = sql.SQL(", ").join(map(sql.Identifier, self.roles)) if self.roles else sql.SQL("PUBLIC")
        created = sql.SQL("CREATE POLICY {} ON {} FOR {} TO {} USING ({})").format(
            sql.Identifier(self.name), relation, sql.SQL(self.command), roles, rows
        )
        return created + sql.SQL(" WITH CHECK (false)") if self.name == LOCK_POLICY else created


def grant_to_jobs(connection: psycopg.Connection[Any], schema: str) -> None:
    """Give each role of ROLES that exists what it needs in `schema` and `catalog`; without any, change nothing.

    Privileges that are no longer needed are taken back. Where all is as it should be, no table is locked.
    """
    there = [name for (name,) in connection.execute(_EXISTING, [list(ROLES)]).fetchall()]
    if not there:
        return
    for place, relations in ((schema, OWN), ("catalog", CATALOG)):
        found = connection.execute(_RELATIONS, [place, list(relations)]).fetchall()
        for role in there:
            _grant(connection, place, role, [name for name, _ in found], is_own=place == schema)
        for name, has_policies in found:
            _guard(connection, (place, name), there, is_own=place == schema, has_policies=has_policies)


def remove_policies(connection: psycopg.Connection[Any], schema: str) -> None:
    """Leave row-level security as versions have it that know no such roles: of the owner's tables they are the owner's.

    The roles keep what they may do with tables without row-level security.
    """
    for place, relations in ((schema, OWN), ("catalog", CATALOG)):
        for name, has_policies in connection.execute(_RELATIONS, [place, list(relations)]).fetchall():
            is_by_job = place == schema and name in BY_JOB
            table = sql.Identifier(place, name)
            for policy, _, _ in connection.execute(_POLICIES, [place, name]).fetchall():
                if policy in _OURS or (is_by_job and policy == EVERYBODY_READS):
                    connection.execute(sql.SQL("DROP POLICY {} ON {}").format(sql.Identifier(policy), table))
            if is_by_job and has_policies:
                connection.execute(sql.SQL("ALTER TABLE {} DISABLE ROW LEVEL SECURITY").format(table))


def privileges(role: str, relation: str) -> tuple[str, ...]:
    """What `role` may do with `relation`, as words of GRANT."""
    may = ROLES[role]
    if relation in may.writes or (may.jobs and relation in BY_JOB):
        return ("SELECT", "INSERT", "UPDATE", "DELETE")
    if relation in may.appends:
        return ("SELECT", "INSERT")
    if relation in may.locks:
        return ("SELECT", "UPDATE")
    return () if relation in SECRET and relation not in may.reads else ("SELECT",)


def _grant(
    connection: psycopg.Connection[Any], schema: str, role: str, relations: Sequence[str], *, is_own: bool
) -> None:
    name, place = sql.Identifier(role), sql.Identifier(schema)
    connection.execute(sql.SQL("GRANT USAGE ON SCHEMA {} TO {}").format(place, name))
    alike: dict[tuple[str, ...], list[str]] = {}
    for relation in relations:
        alike.setdefault(privileges(role, _named(relation, is_own=is_own)), []).append(relation)
    for granted, them in alike.items():
        tables = sql.SQL(", ").join(sql.Identifier(schema, relation) for relation in them)
        connection.execute(sql.SQL("REVOKE ALL ON {} FROM {}").format(tables, name))
        if granted:
            words = sql.SQL(", ").join(map(sql.SQL, granted))
            connection.execute(sql.SQL("GRANT {} ON {} TO {}").format(words, tables, name))
    if is_own:
        for sequence in ROLES[role].uses:
            connection.execute(
                sql.SQL("GRANT USAGE ON SEQUENCE {} TO {}").format(sql.Identifier(schema, sequence), name)
            )


def _guard(
    connection: psycopg.Connection[Any],
    relation: tuple[str, str],
    there: Sequence[str],
    *,
    is_own: bool,
    has_policies: bool,
) -> None:
    """Let each role see all rows, and write those of its own application; nothing where that is so already."""
    is_by_job = is_own and relation[1] in BY_JOB
    if not has_policies and not is_by_job:
        return
    wanted = _policies(_named(relation[1], is_own=is_own), there)
    table = sql.Identifier(*relation)
    mine = {policy.name for policy in wanted} | _OURS
    stored = {
        (name, command, tuple(sorted(roles)))
        for name, command, roles in connection.execute(_POLICIES, list(relation)).fetchall()
        if name in mine
    }
    if stored != {(policy.name, policy.command, tuple(sorted(policy.roles)) or ("public",)) for policy in wanted}:
        for name, _, _ in stored:
            connection.execute(sql.SQL("DROP POLICY {} ON {}").format(sql.Identifier(name), table))
        for policy in wanted:
            connection.execute(policy.create(table))
    if not has_policies:
        connection.execute(sql.SQL("ALTER TABLE {} ENABLE ROW LEVEL SECURITY").format(table))


def _policies(relation: str, there: Sequence[str]) -> list[_Policy]:
    writers = tuple(role for role in there if relation in (*ROLES[role].writes, *ROLES[role].appends))
    lockers = tuple(role for role in there if relation in ROLES[role].locks)
    written = [_Policy(WRITE_POLICY, "ALL", writers)] if writers else []
    written += [_Policy(LOCK_POLICY, "UPDATE", lockers)] if lockers else []
    if relation in BY_JOB:
        own = [_Policy(_of(role), "ALL", (role,), ROLES[role].jobs) for role in there if ROLES[role].jobs]
        return [_Policy(EVERYBODY_READS, "SELECT", ()), *own, *written]
    return [_Policy(READ_POLICY, "SELECT", tuple(there)), *written]


def _of(role: str) -> str:
    return f"of_{role.removeprefix('weir_')}"


_OURS = {READ_POLICY, WRITE_POLICY, LOCK_POLICY, *map(_of, ROLES)}


def _named(relation: str, *, is_own: bool) -> str:
    return relation if is_own else f"catalog.{relation}"
