"""Thresholds: limits have steps, may be of money and of everybody, and billing records each step that is crossed.

Webhooks are called about it by a trigger as those of migration 0092.
"""

from importlib import import_module
from typing import Any

from alembic import op

revision = "0098"
down_revision = "0095"

# The rule of migration 0003: who names no account sees none.
NAMED = """(
    (SELECT current_setting('weir.accounts', true) = '*')
    OR account = ANY (ARRAY(
        SELECT jsonb_array_elements_text(nullif(nullif(current_setting('weir.accounts', true), ''), '*')::jsonb)
    ))
)"""
# That of migration 0061, and what each account has is shown to whoever names one.
SHOWN = """(
    (SELECT current_setting('weir.accounts', true) = '*')
    OR account = ANY (ARRAY(
        SELECT jsonb_array_elements_text(nullif(nullif(current_setting('weir.accounts', true), ''), '*')::jsonb)
    ))
    OR plan <> '' AND plan IN (SELECT plan FROM catalog.account_history WHERE holds_until > now())
    OR account = '' AND plan = '' AND nullif((SELECT current_setting('weir.accounts', true)), '') IS NOT NULL
)"""
SHOWN_BEFORE = SHOWN.rpartition("    OR account = ''")[0] + ")"

LIMITS = """
ALTER TABLE catalog.limits
    ALTER COLUMN meter SET DEFAULT '',
    ADD COLUMN currency text NOT NULL DEFAULT '',
    ADD COLUMN amount numeric CHECK (amount >= 0 AND amount < 'Infinity'),
    ADD COLUMN steps numeric[] NOT NULL DEFAULT '{}'
        CHECK (array_position(steps, NULL) IS NULL AND 0 < ALL (steps) AND 'Infinity' > ALL (steps)),
    DROP CONSTRAINT limits_meter_check,
    DROP CONSTRAINT limit_of_an_account_or_a_plan,
    DROP CONSTRAINT limits_pkey,
    ADD PRIMARY KEY (account, plan, meter, currency, period, effective_from),
    ADD CONSTRAINT limit_of_an_account_or_a_plan_or_each CHECK (account = '' OR plan = ''),
    ADD CONSTRAINT limit_of_a_meter_or_a_currency CHECK ((meter = '') <> (currency = '')),
    ADD CONSTRAINT quantity_of_a_meter CHECK (quantity IS NULL OR meter <> ''),
    ADD CONSTRAINT amount_of_a_currency CHECK (amount IS NULL OR currency <> ''),
    -- What tiers cost is known of a month.
    ADD CONSTRAINT currency_by_the_month CHECK (currency = '' OR period = 'P1M');
COMMENT ON TABLE catalog.limits IS
    'How much of a meter or of money an account, each of a plan, or each may use in a day or month of its own calendar.'
"""
# The migration of a catalog that has rows of what it does not know is refused before (`downgrade.USES`).
LIMITS_BEFORE = """
ALTER TABLE catalog.limits
    DROP CONSTRAINT limits_pkey,
    DROP CONSTRAINT limit_of_an_account_or_a_plan_or_each,
    DROP CONSTRAINT limit_of_a_meter_or_a_currency,
    DROP CONSTRAINT quantity_of_a_meter,
    ALTER COLUMN meter DROP DEFAULT,
    DROP COLUMN currency,
    DROP COLUMN amount,
    DROP COLUMN steps,
    ADD PRIMARY KEY (account, plan, meter, period, effective_from),
    ADD CONSTRAINT limits_meter_check CHECK (meter <> ''),
    ADD CONSTRAINT limit_of_an_account_or_a_plan CHECK ((account = '') <> (plan = ''));
COMMENT ON TABLE catalog.limits IS
    'How much of a meter an account, or each account of a plan, may use in a day or month of its own calendar.'
"""

TABLES = f"""
CREATE TABLE threshold_changes (
    account    text NOT NULL,
    period     text NOT NULL CHECK (period IN ('P1D', 'P1M')),
    first_day  date NOT NULL,
    meter      text NOT NULL,
    currency   text NOT NULL,
    threshold  numeric NOT NULL CHECK (threshold > 0),
    version    integer NOT NULL CHECK (version > 0),
    is_crossed boolean NOT NULL CHECK (is_crossed = (version % 2 = 1)),
    used       numeric,
    frontier   timestamptz,
    changed_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (account, first_day, period, meter, currency, threshold, version)
);
COMMENT ON TABLE threshold_changes IS
    'Each time that an account''s day or month reached a threshold, or went back under it: the last version holds.';
ALTER TABLE threshold_changes ENABLE ROW LEVEL SECURITY;
CREATE POLICY reads_named_accounts ON threshold_changes FOR SELECT USING {NAMED};

CREATE TABLE thresholds_due (
    account text NOT NULL DEFAULT '',
    plan    text NOT NULL DEFAULT '',
    due_at  timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE thresholds_due IS
    'Whose thresholds billing decides again although no usage came: limits or accounts changed. Both empty: everybody.';
ALTER TABLE thresholds_due ENABLE ROW LEVEL SECURITY;
CREATE POLICY reads_named_accounts ON thresholds_due FOR SELECT USING {NAMED};
"""

# One without a key: billing deletes the rows that it has seen, and never one that was added while it decided. A limit
# that is announced is decided again when it begins.
DUE = """
CREATE FUNCTION catalog.note_limit() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
BEGIN
    IF TG_OP = 'TRUNCATE' THEN
        INSERT INTO {schema}.thresholds_due DEFAULT VALUES;
        RETURN NULL;
    END IF;
    IF TG_OP <> 'INSERT' THEN
        INSERT INTO {schema}.thresholds_due VALUES (OLD.account, OLD.plan, greatest(OLD.effective_from, now()));
    END IF;
    IF TG_OP <> 'DELETE' THEN
        INSERT INTO {schema}.thresholds_due VALUES (NEW.account, NEW.plan, greatest(NEW.effective_from, now()));
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER note_limit AFTER INSERT OR UPDATE OR DELETE ON catalog.limits
    FOR EACH ROW EXECUTE FUNCTION catalog.note_limit();
CREATE TRIGGER note_no_limits AFTER TRUNCATE ON catalog.limits
    FOR EACH STATEMENT EXECUTE FUNCTION catalog.note_limit();

CREATE FUNCTION catalog.note_account_of_limits() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
BEGIN
    -- What is announced is noted without a limit, too: there may be one by then.
    IF coalesce(NEW.holds_from, OLD.holds_from) > now() OR EXISTS (SELECT FROM catalog.limits) THEN
        INSERT INTO {schema}.thresholds_due
        VALUES (coalesce(NEW.account, OLD.account), '', greatest(coalesce(NEW.holds_from, OLD.holds_from), now()));
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER note_account_of_limits AFTER INSERT OR UPDATE OR DELETE ON catalog.account_history
    FOR EACH ROW EXECUTE FUNCTION catalog.note_account_of_limits();
INSERT INTO thresholds_due
SELECT account, plan, greatest(effective_from, now()) FROM catalog.limits
UNION ALL SELECT account, '', holds_from FROM catalog.account_history WHERE holds_from > now();
"""

WEBHOOKS: Any = import_module("jobs.runtime.postgres.migrations.versions.0092_webhook_outbox")
TYPES = "weir.threshold.crossed,weir.threshold.retracted"
CALLED = """
    SELECT 'weir.threshold.' || CASE WHEN is_crossed THEN 'crossed' ELSE 'retracted' END AS type, account,
           jsonb_build_array(
               account, period, first_day, meter, currency, trim_scale(threshold)::text, version
           ) AS about,
           jsonb_build_object(
               'account', account, 'period', period, 'period_start', first_day,
               'meter', nullif(meter, ''), 'currency', nullif(currency, ''),
               'threshold', trim_scale(threshold)::text, 'value', trim_scale(used)::text,
               'version', version, 'frontier', frontier
           ) AS data,
           row_number() OVER (ORDER BY account, first_day, period, meter, currency, threshold) AS place
    FROM added
"""


def upgrade() -> None:
    """Widen limits, and have those that there are decided with the next fold of billing."""
    schema = op.get_bind().exec_driver_sql("SELECT quote_ident(current_schema())").scalar_one()
    op.execute(LIMITS)
    op.execute("DROP POLICY reads_named_accounts ON catalog.limits")
    op.execute(f"CREATE POLICY reads_named_accounts ON catalog.limits FOR SELECT USING {SHOWN}")
    op.execute(TABLES)
    op.execute(DUE.format(schema=schema))
    op.execute(WEBHOOKS.TRIGGER.format(table="threshold_changes", types=TYPES, rows=CALLED))


def downgrade() -> None:
    """Remove what was decided: a release before decides no thresholds."""
    op.execute("DROP TRIGGER note_limit ON catalog.limits; DROP TRIGGER note_no_limits ON catalog.limits")
    op.execute("DROP TRIGGER note_account_of_limits ON catalog.account_history")
    op.execute("DROP FUNCTION catalog.note_limit(), catalog.note_account_of_limits()")
    op.execute("DROP TABLE threshold_changes, thresholds_due")
    op.execute("DROP POLICY reads_named_accounts ON catalog.limits")
    op.execute(LIMITS_BEFORE)
    op.execute(f"CREATE POLICY reads_named_accounts ON catalog.limits FOR SELECT USING {SHOWN_BEFORE}")
