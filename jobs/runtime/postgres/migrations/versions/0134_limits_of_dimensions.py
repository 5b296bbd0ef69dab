"""Limits may be of one value of a dimension, and triggers keep the sums of the values that limits name.

What is to be summed is in `limited_dimensions`. Billing keeps it equal to what limits name, in its own transaction:
a batch that is committed beside a declared limit is then in the sums once.
"""

from importlib import import_module
from typing import Any

from alembic import op

revision = "0134"
down_revision = "0132"

WEBHOOKS: Any = import_module("jobs.runtime.postgres.migrations.versions.0092_webhook_outbox")
THRESHOLDS: Any = import_module("jobs.runtime.postgres.migrations.versions.0098_thresholds")
MODELS: Any = import_module("jobs.runtime.postgres.migrations.versions.0108_limits_of_models")

# The rule of migration 0003: who names no account sees none.
NAMED: str = THRESHOLDS.NAMED
COLUMNS = """
ALTER TABLE catalog.limits
    ADD COLUMN dimension text NOT NULL DEFAULT '',
    ADD COLUMN dimension_value text NOT NULL DEFAULT '',
    DROP CONSTRAINT limits_pkey,
    ADD PRIMARY KEY (account, plan, meter, currency, model, dimension, dimension_value, period, effective_from),
    ADD CONSTRAINT value_of_a_dimension CHECK ((dimension = '') = (dimension_value = '')),
    -- Tiers are of a month of all usage, and hours have no dimensions.
    ADD CONSTRAINT dimension_of_a_meter CHECK (dimension = '' OR meter <> ''),
    ADD CONSTRAINT dimension_by_the_day_or_month CHECK (dimension = '' OR NOT starts_with(period, 'PT'));
CREATE INDEX limits_of_dimensions ON catalog.limits (account, plan, meter, dimension, dimension_value)
    WHERE dimension <> '';
ALTER TABLE threshold_changes
    ADD COLUMN dimension text NOT NULL DEFAULT '',
    ADD COLUMN dimension_value text NOT NULL DEFAULT '',
    DROP CONSTRAINT threshold_changes_pkey,
    ADD PRIMARY KEY (
        account, first_day, period, meter, currency, model, dimension, dimension_value, threshold, version
    );
"""
# A catalog that has such limits is refused before (`downgrade.USES`).
COLUMNS_BEFORE = """
DELETE FROM threshold_changes WHERE dimension <> '';
ALTER TABLE threshold_changes
    DROP CONSTRAINT threshold_changes_pkey,
    DROP COLUMN dimension,
    DROP COLUMN dimension_value,
    ADD PRIMARY KEY (account, first_day, period, meter, currency, model, threshold, version);
ALTER TABLE catalog.limits
    DROP CONSTRAINT limits_pkey,
    DROP CONSTRAINT value_of_a_dimension,
    DROP CONSTRAINT dimension_of_a_meter,
    DROP CONSTRAINT dimension_by_the_day_or_month,
    DROP COLUMN dimension,
    DROP COLUMN dimension_value,
    ADD PRIMARY KEY (account, plan, meter, currency, model, period, effective_from);
"""

TABLES = f"""
CREATE TABLE limited_dimensions (
    meter     text NOT NULL,
    dimension text NOT NULL,
    value     text NOT NULL,
    PRIMARY KEY (meter, dimension, value)
);
COMMENT ON TABLE limited_dimensions IS
    'The values of dimensions that limits name, as far as usage_dimensions has their sums. Billing writes it.';

CREATE TABLE usage_dimensions (
    account   text NOT NULL,
    first_day date NOT NULL,
    period    text NOT NULL CHECK (period IN ('P1D', 'P1M')),
    meter     text NOT NULL,
    dimension text NOT NULL,
    value     text NOT NULL,
    model     text,
    quantity  numeric NOT NULL,
    CONSTRAINT usage_dimensions_key
        UNIQUE NULLS NOT DISTINCT (account, first_day, period, meter, dimension, value, model)
) WITH (fillfactor = 50);
COMMENT ON TABLE usage_dimensions IS
    'The sums of usage_days by the value of a dimension that limits name, by day and month; triggers keep it.';
ALTER TABLE usage_dimensions ENABLE ROW LEVEL SECURITY;
CREATE POLICY reads_named_accounts ON usage_dimensions FOR SELECT USING {NAMED};
"""

# What is in no value of any dimension (`is_other`) is summed with empty names. A row stays also at 0. Each row is split
# once, not once for each limit (OFFSET 0).
ADDED = """
        INSERT INTO usage_dimensions AS known (account, first_day, period, meter, dimension, value, model, quantity)
        SELECT account, CASE period WHEN 'P1D' THEN day ELSE date_trunc('month', day::timestamp)::date END, period,
               meter, dimension, value, model, trim_scale(sum({way}quantity))
        FROM (
            SELECT * FROM ({rows}) AS changed CROSS JOIN LATERAL (
                SELECT key AS dimension, value FROM jsonb_each_text(dimensions)
                UNION ALL SELECT '', '' WHERE is_other
            ) AS of_value WHERE meter IN (SELECT meter FROM limited_dimensions) OFFSET 0
        ) AS split JOIN limited_dimensions USING (meter, dimension, value)
        CROSS JOIN unnest('{{P1D,P1M}}'::text[]) AS period
        GROUP BY 1, 2, 3, 4, 5, 6, 7 HAVING sum({way}quantity) <> 0 ORDER BY 1, 2, 3, 4, 5, 6, 7
        ON CONFLICT ON CONSTRAINT usage_dimensions_key DO UPDATE SET
            quantity = trim_scale(known.quantity + excluded.quantity);
"""
OF_ROWS = {
    "inserted": ADDED.format(rows="SELECT * FROM new_rows", way=""),
    "updated": ADDED.format(rows="SELECT *, 1 AS way FROM new_rows UNION ALL SELECT *, -1 FROM old_rows", way="way * "),
    "deleted": ADDED.format(rows="SELECT * FROM old_rows", way="-"),
}
FUNCTION = f"""
CREATE FUNCTION roll_up_dimensions() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    IF TG_OP = 'TRUNCATE' THEN
        TRUNCATE usage_dimensions;
    ELSIF NOT EXISTS (SELECT FROM limited_dimensions) THEN
        RETURN NULL;
    ELSIF TG_OP = 'INSERT' THEN
        {OF_ROWS["inserted"]}
    ELSIF TG_OP = 'UPDATE' THEN
        {OF_ROWS["updated"]}
    ELSE
        {OF_ROWS["deleted"]}
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER roll_up_dimensions_inserted AFTER INSERT ON usage_days REFERENCING NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION roll_up_dimensions();
CREATE TRIGGER roll_up_dimensions_updated AFTER UPDATE ON usage_days
    REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION roll_up_dimensions();
CREATE TRIGGER roll_up_dimensions_deleted AFTER DELETE ON usage_days REFERENCING OLD TABLE AS old_rows
    FOR EACH STATEMENT EXECUTE FUNCTION roll_up_dimensions();
CREATE TRIGGER roll_up_dimensions_truncated AFTER TRUNCATE ON usage_days
    FOR EACH STATEMENT EXECUTE FUNCTION roll_up_dimensions();
"""

# The ids of thresholds without a dimension stay what they were.
CALLED = """
    SELECT 'weir.threshold.' || CASE WHEN is_crossed THEN 'crossed' ELSE 'retracted' END AS type, account,
           jsonb_build_array(
               account, period, first_day, meter, currency, model, trim_scale(threshold)::text, version
           ) || CASE
               WHEN dimension <> '' THEN jsonb_build_array(dimension, dimension_value) ELSE jsonb_build_array()
           END AS about,
           jsonb_build_object(
               'account', account, 'period', period, 'period_start', first_day,
               'meter', nullif(meter, ''), 'currency', nullif(currency, ''), 'model', nullif(model, ''),
               'dimension', nullif(dimension, ''), 'dimension_value', nullif(dimension_value, ''),
               'threshold', trim_scale(threshold)::text, 'value', trim_scale(used)::text,
               'version', version, 'frontier', frontier
           ) AS data,
           row_number() OVER (
               ORDER BY account, first_day, period, meter, currency, model, dimension, dimension_value, threshold
           ) AS place
    FROM added
"""


def upgrade() -> None:
    """Add the columns and tables; the limits that there are keep their meaning and their thresholds."""
    op.execute(COLUMNS)
    op.execute(TABLES)
    op.execute(FUNCTION)
    op.execute(MODELS.OUTBOX)
    op.execute(WEBHOOKS.TRIGGER.format(table="threshold_changes", types=THRESHOLDS.TYPES, rows=CALLED))


def downgrade() -> None:
    """Remove them again, with what was decided of dimensions."""
    op.execute(MODELS.OUTBOX)
    for event in ("inserted", "updated", "deleted", "truncated"):
        op.execute(f"DROP TRIGGER roll_up_dimensions_{event} ON usage_days")
    op.execute("DROP FUNCTION roll_up_dimensions(); DROP TABLE usage_dimensions, limited_dimensions")
    op.execute(COLUMNS_BEFORE)
    op.execute(WEBHOOKS.TRIGGER.format(table="threshold_changes", types=THRESHOLDS.TYPES, rows=MODELS.CALLED))
