"""Limits of money may be of one meter: what its usage of a month costs."""

from alembic import op

revision = "0146"
down_revision = "0144"
is_expansion = True

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


def upgrade() -> None:
    """Allow them; the limits that there are keep their meaning and their thresholds."""
    op.execute(OF.format(**BOTH))


def downgrade() -> None:
    """Remove what was decided of them. A catalog that has such limits is refused before (`downgrade.USES`)."""
    op.execute("DELETE FROM threshold_changes WHERE meter <> '' AND currency <> ''")
    op.execute(OF.format(**EITHER))
