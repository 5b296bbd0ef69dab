"""Limits of money may be of one meter: what its usage of a month costs. And a limit may have a code, for receivers."""

from importlib import import_module
from typing import Any

from alembic import op

revision = "0146"
down_revision = "0145"
is_expansion = True
widened_checks = ("limit_of_a_meter_or_a_currency", "quantity_of_a_meter", "model_of_a_meter", "dimension_of_a_meter")

VERSIONS = "jobs.runtime.postgres.migrations.versions"
WEBHOOKS: Any = import_module(f"{VERSIONS}.0092_webhook_outbox")
THRESHOLDS: Any = import_module(f"{VERSIONS}.0098_thresholds")
DIMENSIONS: Any = import_module(f"{VERSIONS}.0134_limits_of_dimensions")
OUTBOX = "DROP TRIGGER webhook_of_inserted ON threshold_changes"
OF = """
ALTER TABLE catalog.limits
    DROP CONSTRAINT limit_of_a_meter_or_a_currency,
    DROP CONSTRAINT quantity_of_a_meter,
    DROP CONSTRAINT model_of_a_meter,
    DROP CONSTRAINT dimension_of_a_meter,
    ADD CONSTRAINT limit_of_a_meter_or_a_currency CHECK ({of}),
    ADD CONSTRAINT quantity_of_a_meter CHECK (quantity IS NULL OR {counts}),
    ADD CONSTRAINT model_of_a_meter CHECK (model = '' OR {counts}),
    ADD CONSTRAINT dimension_of_a_meter CHECK (dimension = '' OR {counts});
COMMENT ON CONSTRAINT limit_of_a_meter_or_a_currency ON catalog.limits IS {says};
"""
BOTH = {
    "of": "meter <> '' OR currency <> ''",
    "counts": "currency = ''",
    "says": "'Of both: what the usage of the meter costs.'",
}
EITHER = {"of": "(meter = '') <> (currency = '')", "counts": "meter <> ''", "says": "NULL"}
CODES = """
ALTER TABLE catalog.limits ADD COLUMN code text NOT NULL DEFAULT '';
ALTER TABLE threshold_changes ADD COLUMN rule text NOT NULL DEFAULT '';
"""
CODES_BEFORE = """
ALTER TABLE catalog.limits DROP COLUMN code;
ALTER TABLE threshold_changes DROP COLUMN rule;
"""
_DATA = "jsonb_build_object(\n               'account', account,"
assert DIMENSIONS.CALLED.count(_DATA) == 1
CALLED = DIMENSIONS.CALLED.replace(_DATA, _DATA + " 'rule', nullif(rule, ''),")


def upgrade() -> None:
    """Allow them; the limits that there are keep their meaning and their thresholds."""
    op.execute(OF.format(**BOTH) + CODES)
    op.execute(OUTBOX)
    op.execute(WEBHOOKS.TRIGGER.format(table="threshold_changes", types=THRESHOLDS.TYPES, rows=CALLED))


def downgrade() -> None:
    """Remove the codes. A catalog that has such limits is refused before (`downgrade.USES`).

    What was decided of them stays: an earlier version retracts what no limit counts.
    """
    op.execute(OUTBOX)
    op.execute(OF.format(**EITHER) + CODES_BEFORE)
    op.execute(WEBHOOKS.TRIGGER.format(table="threshold_changes", types=THRESHOLDS.TYPES, rows=DIMENSIONS.CALLED))
