"""A price that is 100 times above or below what it is compared with is written down until somebody confirms it.

It is compared with the price that it replaces, the one before it, and the median of its meter and currency: of
those that stood before the transaction, as twenty mistakes of one file are no median.
"""

from alembic import op

revision = "0039"
down_revision = "0038"

KEY = "plan, model, meter, currency, effective_from"

TABLE = f"""
CREATE TABLE catalog.price_jumps (
    plan           text NOT NULL,
    model          text NOT NULL,
    meter          text NOT NULL,
    currency       text NOT NULL,
    effective_from timestamptz NOT NULL,
    unit_price     numeric NOT NULL,
    compared_with  text NOT NULL CHECK (compared_with IN ('replaced', 'before', 'median')),
    other_price    numeric NOT NULL CHECK (other_price > 0),
    changed_by     text NOT NULL,
    changed_at     timestamptz NOT NULL,
    confirmed_by   text CHECK (btrim(confirmed_by) <> ''),
    confirmed_at   timestamptz,
    PRIMARY KEY ({KEY}),
    CHECK ((confirmed_by IS NULL) = (confirmed_at IS NULL))
);
COMMENT ON TABLE catalog.price_jumps IS
    'Prices of catalog.prices that are 100 times above or below another, kept by triggers: taken, and an alert until '
    'somebody confirms them (confirmed_by, confirmed_at) or changes the price.';
COMMENT ON COLUMN catalog.price_jumps.compared_with IS
    'What other_price is: that which the price replaced, the one before it in time, or the median of its meter and '
    'currency.';
COMMENT ON COLUMN catalog.price_jumps.changed_at IS 'When the price was stored: the start of the transaction.';

ALTER TABLE catalog.price_jumps ENABLE ROW LEVEL SECURITY;
CREATE POLICY reads_named_accounts ON catalog.price_jumps FOR SELECT USING (
    (SELECT current_setting('weir.accounts', true) = '*')
    OR plan IN (SELECT plan FROM catalog.account_history WHERE holds_until > now())
);
"""

# What waits to be confirmed is nothing to compare with, and no zero has a magnitude.
SOUND = """p.unit_price > 0 AND NOT EXISTS (
                SELECT FROM catalog.price_jumps AS known
                WHERE known.confirmed_at IS NULL AND known.unit_price = p.unit_price
                  AND (known.plan, known.model, known.meter, known.currency, known.effective_from)
                    = (p.plan, p.model, p.meter, p.currency, p.effective_from)
            )"""

# Where fewer than three prices stood before the transaction, its own count, too: more than three, as one is the judged.
# A price far from the median that somebody has confirmed needs it not again with each price that follows it.
JUDGED = f"""
CREATE FUNCTION catalog.{{name}}() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
BEGIN
    -- While a column has another name nobody is told of the row; and what is told to be deleted is gone at once.
    IF EXISTS (SELECT FROM catalog.missing_columns WHERE table_name = 'prices')
        OR coalesce(current_setting('weir.takes_any_meter', true), '') = 'yes'
    THEN
        RETURN NULL;
    END IF;
    -- By itself: a condition is planned as a whole, with names that are not there.
    IF NOT EXISTS ({{judged}}) THEN
        RETURN NULL;
    END IF;
    WITH judged AS (
        {{judged}}
    ), sound AS (
        SELECT meter, currency, p.unit_price, p.changed_at IS DISTINCT FROM now() AS stood
        FROM catalog.prices AS p JOIN (SELECT DISTINCT meter, currency FROM judged) AS asked USING (meter, currency)
        WHERE {SOUND}
    ), medians AS (
        SELECT meter, currency, CASE
            WHEN count(*) FILTER (WHERE stood) >= 3
            THEN percentile_disc(0.5) WITHIN GROUP (ORDER BY unit_price) FILTER (WHERE stood)
            WHEN count(*) > 3 THEN percentile_disc(0.5) WITHIN GROUP (ORDER BY unit_price)
        END AS median
        FROM sound GROUP BY meter, currency
    ), jumps AS (
        SELECT DISTINCT ON ({KEY}) j.*, other.compared_with, other.price, agreed.confirmed_by, agreed.confirmed_at
        FROM judged AS j LEFT JOIN medians USING (meter, currency)
        LEFT JOIN LATERAL (
            SELECT p.effective_from, p.unit_price FROM catalog.prices AS p
            WHERE (p.plan, p.model, p.meter, p.currency) = (j.plan, j.model, j.meter, j.currency)
              AND p.effective_from < j.effective_from AND {SOUND}
            ORDER BY p.effective_from DESC LIMIT 1
        ) AS before ON true
        CROSS JOIN LATERAL (
            VALUES (1, 'replaced', j.replaced), (2, 'before', before.unit_price), (3, 'median', medians.median)
        ) AS other (place, compared_with, price)
        LEFT JOIN LATERAL (
            SELECT known.confirmed_by, known.confirmed_at FROM catalog.price_jumps AS known
            WHERE other.compared_with = 'median' AND known.confirmed_at IS NOT NULL
              AND (known.plan, known.model, known.meter, known.currency) = (j.plan, j.model, j.meter, j.currency)
              AND (known.effective_from, known.unit_price)
                IN ((j.effective_from, j.replaced), (before.effective_from, before.unit_price))
            ORDER BY known.effective_from DESC LIMIT 1
        ) AS agreed ON true
        WHERE j.unit_price >= other.price * 100
           -- Many a model is free; a price that ends to be one is asked about.
           OR j.unit_price * 100 <= other.price AND (j.unit_price > 0 OR other.compared_with <> 'median')
        ORDER BY {KEY}, other.place
    )
    INSERT INTO catalog.price_jumps
    SELECT {KEY}, unit_price, compared_with, price, changed_by, changed_at,
           CASE WHEN confirms THEN changed_by ELSE confirmed_by END, CASE WHEN confirms THEN now() ELSE confirmed_at END
    FROM jumps, coalesce(current_setting('weir.confirms_prices', true) = 'yes', false) AS confirms
    ON CONFLICT ({KEY}) DO UPDATE SET
        unit_price = excluded.unit_price, compared_with = excluded.compared_with, other_price = excluded.other_price,
        changed_by = excluded.changed_by, changed_at = excluded.changed_at,
        confirmed_by = excluded.confirmed_by, confirmed_at = excluded.confirmed_at;
{{after}}    RETURN NULL;
END $$;
"""
INSERTED = f"SELECT {KEY}, unit_price, changed_by, changed_at, NULL::numeric AS replaced FROM now_there"
UPDATED = f"""SELECT {KEY}, n.unit_price, n.changed_by, n.changed_at, (
            SELECT p.unit_price FROM (SELECT w.*) AS p WHERE {SOUND}
        ) AS replaced
        FROM now_there AS n LEFT JOIN was_there AS w USING ({KEY}) WHERE w.unit_price IS DISTINCT FROM n.unit_price"""
FORGOTTEN = """
    DELETE FROM catalog.price_jumps AS j USING was_there AS w
    WHERE (j.plan, j.model, j.meter, j.currency, j.effective_from)
        = (w.plan, w.model, w.meter, w.currency, w.effective_from)
      AND NOT EXISTS (
          SELECT FROM catalog.prices AS p WHERE p.unit_price = j.unit_price
            AND (p.plan, p.model, p.meter, p.currency, p.effective_from)
              = (j.plan, j.model, j.meter, j.currency, j.effective_from)
      );
"""
TRIGGERS = f"""
CREATE FUNCTION catalog.forget_price_jumps() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
BEGIN
    IF EXISTS (SELECT FROM catalog.missing_columns WHERE table_name = 'prices') THEN
        RETURN NULL;
    END IF;{FORGOTTEN}    RETURN NULL;
END $$;
CREATE TRIGGER judge_inserted_prices AFTER INSERT ON catalog.prices
    REFERENCING NEW TABLE AS now_there FOR EACH STATEMENT EXECUTE FUNCTION catalog.judge_inserted_prices();
CREATE TRIGGER judge_updated_prices AFTER UPDATE ON catalog.prices
    REFERENCING OLD TABLE AS was_there NEW TABLE AS now_there
    FOR EACH STATEMENT EXECUTE FUNCTION catalog.judge_updated_prices();
CREATE TRIGGER forget_price_jumps AFTER DELETE ON catalog.prices
    REFERENCING OLD TABLE AS was_there FOR EACH STATEMENT EXECUTE FUNCTION catalog.forget_price_jumps();
"""
NO_JUMPS = """
DROP TRIGGER forget_price_jumps ON catalog.prices;
DROP TRIGGER judge_updated_prices ON catalog.prices;
DROP TRIGGER judge_inserted_prices ON catalog.prices;
DROP FUNCTION catalog.forget_price_jumps();
DROP FUNCTION catalog.judge_updated_prices();
DROP FUNCTION catalog.judge_inserted_prices();
DROP TABLE catalog.price_jumps;
"""


def upgrade() -> None:
    """Judge prices from now on; those that there are stay as they are."""
    op.execute(TABLE)
    op.execute(JUDGED.format(name="judge_inserted_prices", judged=INSERTED, after=""))
    op.execute(JUDGED.format(name="judge_updated_prices", judged=UPDATED, after=FORGOTTEN))
    op.execute(TRIGGERS)


def downgrade() -> None:
    """Judge none."""
    op.execute(NO_JUMPS)
