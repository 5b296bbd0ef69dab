"""Webhooks are called about hits of watches, by a trigger as those of migration 0092."""

from importlib import import_module
from typing import Any

from alembic import op

revision = "0102"
down_revision = "0101"

WEBHOOKS: Any = import_module("jobs.runtime.postgres.migrations.versions.0092_webhook_outbox")
# One that may be of several accounts is for endpoints of all: no account is named by the empty text.
TYPES = "weir.watch.hit"
CALLED = """
    SELECT 'weir.watch.hit' AS type, coalesce(account, '') AS account, jsonb_build_array(watch_id, hour, step) AS about,
           jsonb_build_object(
               'watch', name, 'account', account, 'hour', hour, 'reached', step, 'hits', hits, 'first', first
           ) AS data,
           row_number() OVER (ORDER BY hour, watch_id) AS place
    FROM added
"""


def upgrade() -> None:
    """Call from now on."""
    op.execute(WEBHOOKS.TRIGGER.format(table="watch_calls", types=TYPES, rows=CALLED))


def downgrade() -> None:
    """Call no more; what waits to be delivered is delivered."""
    op.execute("DROP TRIGGER webhook_of_inserted ON watch_calls")
