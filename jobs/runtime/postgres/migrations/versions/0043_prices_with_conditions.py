"""A price may be for models that begin alike, and for events whose columns have certain values.

Both stand in its `model` (`metering.price_models`), so that it has versions, an end, an author and a jump as any other
price has, and a release that knows nothing of it prices nothing by it.
"""

from alembic import op

revision = "0043"
down_revision = "0042"

# In the form that follows the table to another schema.
WRITTEN = """
CREATE FUNCTION catalog.price_model(model text, conditions jsonb) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE BEGIN ATOMIC
    SELECT CASE WHEN conditions <> '{}' THEN model || '{' || (
        SELECT string_agg(to_json(key)::text || ':' || CASE jsonb_typeof(value)
            WHEN 'string' THEN to_json(value #>> '{}')::text WHEN 'boolean' THEN to_json(value::text)::text
            ELSE value::text END, ',' ORDER BY key COLLATE "C")
        FROM jsonb_each(conditions)
    ) || '}' END;
END;
COMMENT ON FUNCTION catalog.price_model(text, jsonb) IS
    'The model of a price with conditions: catalog.price_model(''gpt-4o'', ''{"operation": "batch"}'').';

CREATE FUNCTION catalog.conditions_of(model text) RETURNS jsonb LANGUAGE sql IMMUTABLE PARALLEL SAFE BEGIN ATOMIC
    SELECT CASE WHEN strpos(model, '{"') > 1 THEN substr(model, strpos(model, '{"'))::jsonb ELSE '{}' END;
END;
COMMENT ON FUNCTION catalog.conditions_of(text) IS 'What catalog.price_model was given.';

CREATE FUNCTION catalog.is_price_attribute(named text) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER BEGIN ATOMIC
    SELECT EXISTS (SELECT FROM jobs WHERE job = 'joins' AND config -> 'price_attributes' ? named);
END;
COMMENT ON FUNCTION catalog.is_price_attribute(text) IS 'Whether conditions of prices can name this column of events.';
"""
CHECKED = """
CREATE FUNCTION catalog.check_price_model() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
    begins int;
    conditions jsonb;
    unknown text;
BEGIN
    -- While the column has another name nobody is told of the row.
    IF NOT to_jsonb(NEW) ? 'model' THEN
        RETURN NEW;
    END IF;
    begins := strpos(NEW.model, '{"');
    IF begins = 0 THEN
        RETURN NEW;
    END IF;
    BEGIN
        conditions := substr(NEW.model, begins)::jsonb;
    EXCEPTION WHEN invalid_text_representation THEN
        conditions := NULL;
    END;
    IF conditions IS NULL OR begins = 1 OR jsonb_typeof(conditions) <> 'object'
        OR (SELECT count(*) FROM jsonb_object_keys(conditions)) NOT BETWEEN 1 AND 4
        OR EXISTS (SELECT FROM jsonb_each(conditions) WHERE jsonb_typeof(value) <> 'string')
        OR catalog.price_model(left(NEW.model, begins - 1), conditions) <> NEW.model
    THEN
        RAISE EXCEPTION 'a price of %: its model must be a model with 1 to 4 conditions, texts by column: write it as '
            'catalog.price_model(''gpt-4o'', ''{"operation": "batch"}'')', quote_literal(NEW.model)
            USING ERRCODE = 'check_violation';
    END IF;
    SELECT min(key) INTO unknown FROM jsonb_object_keys(conditions) AS key WHERE NOT catalog.is_price_attribute(key);
    -- What was stored before may be stored again, and `weir catalog reconcile` deletes it once more.
    IF unknown IS NOT NULL AND coalesce(current_setting('weir.takes_any_meter', true), '') <> 'yes' AND NOT EXISTS (
        SELECT FROM catalog.prices AS p WHERE (p.plan, p.model, p.meter, p.currency, p.effective_from)
            = (NEW.plan, NEW.model, NEW.meter, NEW.currency, NEW.effective_from)
    ) THEN
        RAISE EXCEPTION 'a price of % has a condition on %, which price_attributes in the configuration does not list: '
            'list it there first, and start the applications', quote_literal(NEW.model), quote_literal(unknown)
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER check_price_model BEFORE INSERT OR UPDATE ON catalog.prices
    FOR EACH ROW EXECUTE FUNCTION catalog.check_price_model();
"""
# At the end of the transaction: two prices and that of both may come in any order.
CLEAR = """
CREATE FUNCTION catalog.refuse_unclear_price() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
    changed catalog.prices;
    base text;
    missing record;
BEGIN
    FOREACH changed IN ARRAY CASE TG_OP
        WHEN 'INSERT' THEN ARRAY[NEW] WHEN 'DELETE' THEN ARRAY[OLD] ELSE ARRAY[NEW, OLD] END
    LOOP
        CONTINUE WHEN strpos(changed.model, '{"') < 2;
        base := left(changed.model, strpos(changed.model, '{"') - 1);
        -- Whoever stores another of them at the same time is seen.
        PERFORM pg_advisory_xact_lock(
            hashtextextended(concat_ws(' ', changed.plan, changed.meter, changed.currency), 43)
        );
        WITH alike AS (
            SELECT model, catalog.conditions_of(model) AS conditions, min(effective_from) AS begins, max(ends) AS ends
            FROM (
                SELECT plan, model, meter, currency, effective_from, 'infinity'::timestamptz AS ends FROM catalog.prices
                UNION ALL
                SELECT plan, model, meter, currency, effective_from, ended_at FROM catalog.ended_prices
            ) AS priced
            WHERE (plan, meter, currency) = (changed.plan, changed.meter, changed.currency)
              AND left(model, length(base) + 2) = base || '{"'
            GROUP BY model
        )
        SELECT one.model AS one, other.model AS other, base AS base, one.conditions || other.conditions AS conditions
        INTO missing
        FROM alike AS one JOIN alike AS other
          ON one.model < other.model AND greatest(one.begins, other.begins) < least(one.ends, other.ends)
        WHERE NOT one.conditions @> other.conditions AND NOT other.conditions @> one.conditions
          AND NOT EXISTS (
              SELECT FROM jsonb_each(one.conditions) AS a JOIN jsonb_each(other.conditions) AS b USING (key)
              WHERE a.value <> b.value
          )
          AND NOT EXISTS (
              SELECT FROM alike AS of_both WHERE of_both.conditions = one.conditions || other.conditions
                  AND of_both.begins <= greatest(one.begins, other.begins)
                  AND of_both.ends >= least(one.ends, other.ends)
          )
        ORDER BY 1, 2 LIMIT 1;
        IF FOUND THEN
            RAISE EXCEPTION 'the prices of % and % can both hold, and neither says more: a price is missing for '
                'both, of %, from the later of them on, until the first of them ends', quote_literal(missing.one),
                quote_literal(missing.other), quote_literal(catalog.price_model(missing.base, missing.conditions))
                USING ERRCODE = 'check_violation';
        END IF;
    END LOOP;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER refuse_unclear_price AFTER INSERT OR UPDATE ON catalog.prices
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (strpos(NEW.model, '{"') > 1)
    EXECUTE FUNCTION catalog.refuse_unclear_price();
CREATE CONSTRAINT TRIGGER refuse_unclear_move AFTER UPDATE ON catalog.prices
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (strpos(OLD.model, '{"') > 1 AND strpos(NEW.model, '{"') < 2)
    EXECUTE FUNCTION catalog.refuse_unclear_price();
CREATE CONSTRAINT TRIGGER refuse_unclear_deletion AFTER DELETE ON catalog.prices
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (strpos(OLD.model, '{"') > 1)
    EXECUTE FUNCTION catalog.refuse_unclear_price();
"""


def upgrade() -> None:
    """Take conditions, and say how they are written."""
    op.execute(WRITTEN)
    op.execute(CHECKED)
    op.execute(CLEAR)


def downgrade() -> None:
    """Take any text for a model again."""
    op.execute("DROP TRIGGER refuse_unclear_deletion ON catalog.prices")
    op.execute("DROP TRIGGER refuse_unclear_move ON catalog.prices")
    op.execute("DROP TRIGGER refuse_unclear_price ON catalog.prices")
    op.execute("DROP FUNCTION catalog.refuse_unclear_price()")
    op.execute("DROP TRIGGER check_price_model ON catalog.prices")
    op.execute("DROP FUNCTION catalog.check_price_model()")
    for function in ("is_price_attribute(text)", "conditions_of(text)", "price_model(text, jsonb)"):
        op.execute(f"DROP FUNCTION catalog.{function}")
