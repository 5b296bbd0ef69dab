"""Webhooks are called about each change of a match about which they were called before, however old it is."""

from importlib import import_module
from typing import Any

from alembic import op

revision = "0107"
down_revision = "0106"

WEBHOOKS: Any = import_module("jobs.runtime.postgres.migrations.versions.0092_webhook_outbox")
BEFORE: Any = import_module("jobs.runtime.postgres.migrations.versions.0103_patterns")
CALLED = f"""{BEFORE.CALLED.rstrip()} OR EXISTS (
        SELECT FROM {{schema}}.pattern_matches AS before
        WHERE before.pattern_id = added.pattern_id AND before.match_id = added.match_id
          AND before.version < added.version
          AND (before.frontier IS NULL OR before.started_at > before.frontier - interval '7 days')
    )
"""


def upgrade() -> None:
    """Call about them."""
    _call(CALLED)


def downgrade() -> None:
    """Call about no change of a match that began more than a week before."""
    _call(BEFORE.CALLED)


def _call(rows: str) -> None:
    schema = op.get_bind().exec_driver_sql("SELECT quote_ident(current_schema())").scalar_one()
    op.execute("DROP TRIGGER webhook_of_inserted ON pattern_matches")
    op.execute(WEBHOOKS.TRIGGER.format(table="pattern_matches", types=BEFORE.TYPES, rows=rows.format(schema=schema)))
