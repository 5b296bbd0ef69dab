"""Thresholds: what changed since when is noted with `thresholds_due`, and versions have room for the driver's epoch.

An edit of an account is noted if it changes plan or calendar, one of a limit if it changes more than who edited it.
"""

from importlib import import_module
from typing import Any

from alembic import op

revision = "0099"
down_revision = "0098"

THRESHOLDS: Any = import_module("jobs.runtime.postgres.migrations.versions.0098_thresholds")
COLUMNS = """
ALTER TABLE thresholds_due ADD COLUMN since timestamptz NOT NULL DEFAULT '-infinity';
ALTER TABLE threshold_changes ALTER COLUMN version TYPE bigint;
"""
# Versions of a release before count changes, and are integers.
# A webhook's id is of the version, so a number that was called about is not used again: the last version of each
# threshold follows the last small one, and is odd where it is crossed.
COLUMNS_BEFORE = """
ALTER TABLE thresholds_due DROP COLUMN since;
DELETE FROM threshold_changes AS old USING threshold_changes AS newer
WHERE (old.account, old.first_day, old.period, old.meter, old.currency, old.threshold)
    = (newer.account, newer.first_day, newer.period, newer.meter, newer.currency, newer.threshold)
  AND old.version < newer.version AND old.version > 1000000;
UPDATE threshold_changes AS last
SET version = small.version + 1 + CASE WHEN last.is_crossed = ((small.version + 1) % 2 = 1) THEN 0 ELSE 1 END
FROM (
    SELECT account, first_day, period, meter, currency, threshold,
           coalesce(max(version) FILTER (WHERE version <= 1000000), 0) AS version
    FROM threshold_changes GROUP BY account, first_day, period, meter, currency, threshold
) AS small
WHERE last.version > 1000000
  AND (last.account, last.first_day, last.period, last.meter, last.currency, last.threshold)
    = (small.account, small.first_day, small.period, small.meter, small.currency, small.threshold);
ALTER TABLE threshold_changes ALTER COLUMN version TYPE integer;
"""
REMOVED = """
DROP TRIGGER note_limit ON catalog.limits;
DROP TRIGGER note_no_limits ON catalog.limits;
DROP TRIGGER note_account_of_limits ON catalog.account_history;
DROP FUNCTION catalog.note_limit(), catalog.note_account_of_limits();
"""

# A limit or a plan that begins at an instant changes no period that ended before.
LIMITS = """
CREATE FUNCTION catalog.note_limit() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
    editor text[] := '{{changed_by,changed_at}}';
BEGIN
    IF TG_OP = 'TRUNCATE' THEN
        INSERT INTO {schema}.thresholds_due DEFAULT VALUES;
        RETURN NULL;
    END IF;
    IF TG_OP = 'UPDATE' AND to_jsonb(OLD) - editor = to_jsonb(NEW) - editor THEN
        RETURN NULL;
    END IF;
    IF TG_OP <> 'INSERT' THEN
        INSERT INTO {schema}.thresholds_due (account, plan, due_at, since)
        VALUES (OLD.account, OLD.plan, greatest(OLD.effective_from, now()), OLD.effective_from);
    END IF;
    IF TG_OP <> 'DELETE' THEN
        INSERT INTO {schema}.thresholds_due (account, plan, due_at, since)
        VALUES (NEW.account, NEW.plan, greatest(NEW.effective_from, now()), NEW.effective_from);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER note_limit AFTER INSERT OR UPDATE OR DELETE ON catalog.limits
    FOR EACH ROW EXECUTE FUNCTION catalog.note_limit();
CREATE TRIGGER note_no_limits AFTER TRUNCATE ON catalog.limits
    FOR EACH STATEMENT EXECUTE FUNCTION catalog.note_limit();
"""

# The history of a row is deleted and written again also when nothing changes, so what was before is taken before
# `keep_account_history` runs: triggers of a row run by name. Columns may be renamed (`catalog.missing_columns`).
ACCOUNTS = """
CREATE FUNCTION catalog.note_plans_before() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
BEGIN
    PERFORM set_config('weir.plans_before', coalesce((
        SELECT jsonb_agg(jsonb_build_array(account, holds_from, plan)) FROM catalog.account_history
        WHERE account IN (to_jsonb(OLD) ->> 'account', to_jsonb(NEW) ->> 'account')
    ), '[]')::text, true);
    RETURN NULL;
END $$;
CREATE FUNCTION catalog.note_account_of_limits() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
    has_limits boolean := EXISTS (SELECT FROM catalog.limits);
BEGIN
    -- What is announced is noted without a limit, too: there may be one by then.
    INSERT INTO {schema}.thresholds_due (account, due_at, since)
    WITH moves AS (
        SELECT is_after, account, holds_from,
               plan, plan IS DISTINCT FROM lag(plan) OVER by_time AS is_move
        FROM (
            SELECT false AS is_after, row ->> 0 AS account, (row ->> 1)::timestamptz AS holds_from, row ->> 2 AS plan
            FROM jsonb_array_elements(current_setting('weir.plans_before')::jsonb) AS row
            UNION ALL
            SELECT true, account, holds_from, plan FROM catalog.account_history
            WHERE account IN (to_jsonb(OLD) ->> 'account', to_jsonb(NEW) ->> 'account')
        ) AS stretches WINDOW by_time AS (PARTITION BY is_after, account ORDER BY holds_from)
    ), changed AS (
        SELECT account, holds_from FROM moves WHERE is_move
        GROUP BY account, holds_from, plan HAVING count(*) = 1
    )
    SELECT account, greatest(holds_from, now()), min(holds_from) FROM changed
    WHERE has_limits OR holds_from > now() GROUP BY 1, 2;
    -- What began in this transaction is placed at its end (`keep_end_of_account`).
    IF TG_OP = 'DELETE' AND has_limits THEN
        INSERT INTO {schema}.thresholds_due (account, since) VALUES (to_jsonb(OLD) ->> 'account', now());
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER a_note_plans_before AFTER INSERT OR UPDATE OR DELETE ON catalog.accounts
    FOR EACH ROW EXECUTE FUNCTION catalog.note_plans_before();
CREATE TRIGGER note_account_of_limits AFTER INSERT OR UPDATE OR DELETE ON catalog.accounts
    FOR EACH ROW EXECUTE FUNCTION catalog.note_account_of_limits();

CREATE FUNCTION catalog.note_zone_of_limits() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
BEGIN
    IF EXISTS (SELECT FROM catalog.limits) THEN
        INSERT INTO {schema}.thresholds_due (account, since) VALUES (NEW.account, NEW.holds_from);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER note_zone_of_limits AFTER INSERT OR UPDATE ON catalog.account_zones
    FOR EACH ROW EXECUTE FUNCTION catalog.note_zone_of_limits();
"""


def upgrade() -> None:
    """Note what changed since when."""
    schema = op.get_bind().exec_driver_sql("SELECT quote_ident(current_schema())").scalar_one()
    op.execute(COLUMNS)
    op.execute(REMOVED)
    op.execute((LIMITS + ACCOUNTS).format(schema=schema))


def downgrade() -> None:
    """Note that something changed, as before."""
    schema = op.get_bind().exec_driver_sql("SELECT quote_ident(current_schema())").scalar_one()
    op.execute("DROP TRIGGER note_zone_of_limits ON catalog.account_zones")
    op.execute("DROP TRIGGER a_note_plans_before ON catalog.accounts")
    op.execute("DROP FUNCTION catalog.note_plans_before(), catalog.note_zone_of_limits()")
    op.execute(REMOVED.replace("ON catalog.account_history", "ON catalog.accounts"))
    op.execute(COLUMNS_BEFORE)
    op.execute(THRESHOLDS.DUE.rpartition("INSERT INTO thresholds_due")[0].format(schema=schema))
