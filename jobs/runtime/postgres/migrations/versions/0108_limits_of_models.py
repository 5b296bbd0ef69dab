"""Limits may be of one model, and recur: a threshold at each multiple of `every`."""

from importlib import import_module
from typing import Any

from alembic import op

revision = "0108"
down_revision = "0107"

WEBHOOKS: Any = import_module("jobs.runtime.postgres.migrations.versions.0092_webhook_outbox")
THRESHOLDS: Any = import_module("jobs.runtime.postgres.migrations.versions.0098_thresholds")
OUTBOX = "DROP TRIGGER webhook_of_inserted ON threshold_changes"

COLUMNS = """
ALTER TABLE catalog.limits
    ADD COLUMN model text NOT NULL DEFAULT '',
    ADD COLUMN every numeric CHECK (every > 0 AND every < 'Infinity'),
    DROP CONSTRAINT limits_pkey,
    ADD PRIMARY KEY (account, plan, meter, currency, model, period, effective_from),
    -- What tiers of several models cost belongs to none of them alone.
    ADD CONSTRAINT model_of_a_meter CHECK (model = '' OR meter <> '');
ALTER TABLE threshold_changes
    ADD COLUMN model text NOT NULL DEFAULT '',
    DROP CONSTRAINT threshold_changes_pkey,
    ADD PRIMARY KEY (account, first_day, period, meter, currency, model, threshold, version);
"""
# A catalog that has such limits is refused before (`downgrade.USES`).
COLUMNS_BEFORE = """
DELETE FROM threshold_changes WHERE model <> '';
ALTER TABLE threshold_changes
    DROP CONSTRAINT threshold_changes_pkey,
    DROP COLUMN model,
    ADD PRIMARY KEY (account, first_day, period, meter, currency, threshold, version);
ALTER TABLE catalog.limits
    DROP CONSTRAINT limits_pkey,
    DROP CONSTRAINT model_of_a_meter,
    DROP COLUMN model,
    DROP COLUMN every,
    ADD PRIMARY KEY (account, plan, meter, currency, period, effective_from);
"""
CALLED = """
    SELECT 'weir.threshold.' || CASE WHEN is_crossed THEN 'crossed' ELSE 'retracted' END AS type, account,
           jsonb_build_array(
               account, period, first_day, meter, currency, model, trim_scale(threshold)::text, version
           ) AS about,
           jsonb_build_object(
               'account', account, 'period', period, 'period_start', first_day,
               'meter', nullif(meter, ''), 'currency', nullif(currency, ''), 'model', nullif(model, ''),
               'threshold', trim_scale(threshold)::text, 'value', trim_scale(used)::text,
               'version', version, 'frontier', frontier
           ) AS data,
           row_number() OVER (
               ORDER BY account, first_day, period, meter, currency, model, threshold
           ) AS place
    FROM added
"""


def upgrade() -> None:
    """Add the columns; the limits that there are keep their meaning and their thresholds."""
    op.execute(COLUMNS)
    op.execute(OUTBOX)
    op.execute(WEBHOOKS.TRIGGER.format(table="threshold_changes", types=THRESHOLDS.TYPES, rows=CALLED))


def downgrade() -> None:
    """Remove them again, with what was decided of models."""
    op.execute(OUTBOX)
    op.execute(COLUMNS_BEFORE)
    op.execute(WEBHOOKS.TRIGGER.format(table="threshold_changes", types=THRESHOLDS.TYPES, rows=THRESHOLDS.CALLED))
