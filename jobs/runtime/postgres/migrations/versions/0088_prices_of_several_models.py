"""A price may be for several models and prefixes together: its `model` is then a JSON list (`metering.price_models`).

So a group has versions, an end, an author and one ladder of tiers as any other price has, and a release that knows
nothing of it prices nothing by it.
"""

from alembic import op

revision = "0088"
down_revision = "0085"

WRITTEN = r"""
CREATE FUNCTION catalog.price_models(models text[], conditions jsonb DEFAULT '{}') RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE BEGIN ATOMIC
    SELECT CASE WHEN conditions = '{}' THEN listed ELSE catalog.price_model(listed, conditions) END
    FROM (
        SELECT '[' || string_agg(to_json(name)::text, ',' ORDER BY name COLLATE "C") || ']' AS listed
        FROM unnest(models) AS name
    ) AS written;
END;
COMMENT ON FUNCTION catalog.price_models(text[], jsonb) IS
    'The model of one price for several models and prefixes: catalog.price_models(ARRAY[''gpt-4o-*'', ''o3'']).';

CREATE FUNCTION catalog.models_of(model text) RETURNS text[]
LANGUAGE sql IMMUTABLE PARALLEL SAFE BEGIN ATOMIC
    SELECT CASE WHEN split_part(model, '{"', 1)
            ~ '^\["([^"\\[:cntrl:]]|\\["\\/])*"(,"([^"\\[:cntrl:]]|\\["\\/])*")*\]$'
        THEN ARRAY(SELECT jsonb_array_elements_text(split_part(model, '{"', 1)::jsonb))
        ELSE ARRAY[split_part(model, '{"', 1)] END;
END;
COMMENT ON FUNCTION catalog.models_of(text) IS 'Each model and prefix that a price is for.';
"""
CHECKED = """
CREATE FUNCTION catalog.check_models_of_price() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
    models text[];
BEGIN
    -- While the column has another name nobody is told of the row.
    IF NOT to_jsonb(NEW) ? 'model' THEN
        RETURN NEW;
    END IF;
    IF NOT starts_with(NEW.model, '["') THEN
        RETURN NEW;
    END IF;
    models := catalog.models_of(NEW.model);
    IF cardinality(models) NOT BETWEEN 2 AND 50
        OR EXISTS (SELECT FROM unnest(models) AS name WHERE name = '' OR starts_with(name, '["'))
        OR (SELECT count(DISTINCT name COLLATE "C") FROM unnest(models) AS name) <> cardinality(models)
        OR catalog.price_models(models) <> split_part(NEW.model, '{"', 1)
        OR strpos(NEW.model, '{"="') > 0 OR strpos(NEW.model, '{"+"') > 0
    THEN
        RAISE EXCEPTION 'a price of %: its model must be a list of 2 to 50 models, each once: write it as '
            'catalog.price_models(ARRAY[''gpt-4o-*'', ''o3''])', quote_literal(NEW.model)
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER check_models_of_price BEFORE INSERT OR UPDATE ON catalog.prices
    FOR EACH ROW EXECUTE FUNCTION catalog.check_models_of_price();
"""
# At the end of the transaction: one group may end in it and another begin.
CLEAR = """
CREATE FUNCTION catalog.refuse_shared_models() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
    other record;
BEGIN
    -- Whoever stores another of them at the same time is seen.
    PERFORM pg_advisory_xact_lock(hashtextextended(concat_ws(' ', NEW.plan, NEW.meter, NEW.currency), 43));
    WITH groups AS (
        SELECT split_part(model, '{"', 1) AS listed, catalog.models_of(model) AS models,
               min(effective_from) AS begins, max(ends) AS ends
        FROM (
            SELECT plan, model, meter, currency, effective_from, 'infinity'::timestamptz AS ends FROM catalog.prices
            UNION ALL
            SELECT plan, model, meter, currency, effective_from, ended_at FROM catalog.ended_prices
        ) AS priced
        WHERE (plan, meter, currency) = (NEW.plan, NEW.meter, NEW.currency) AND starts_with(model, '["')
        GROUP BY model
    )
    SELECT groups.listed, name INTO other
    FROM groups AS own JOIN groups ON groups.listed <> own.listed
     AND greatest(own.begins, groups.begins) < least(own.ends, groups.ends),
         unnest(own.models) AS name
    WHERE own.listed = split_part(NEW.model, '{"', 1) AND name = ANY (groups.models)
    ORDER BY 1, 2 LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'the prices of % and % are both for %, and neither says more: end one before the other begins '
            '(`weir catalog delete price`), or leave the model out of one',
            quote_literal(split_part(NEW.model, '{"', 1)), quote_literal(other.listed), quote_literal(other.name)
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER refuse_shared_models AFTER INSERT OR UPDATE ON catalog.prices
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (starts_with(NEW.model, '["'))
    EXECUTE FUNCTION catalog.refuse_shared_models();
"""


def upgrade() -> None:
    """Take groups of models, and say how they are written."""
    op.execute(WRITTEN)
    op.execute(CHECKED)
    op.execute(CLEAR)


def downgrade() -> None:
    """Take prices of one model or prefix: `downgrade` refuses while there are others."""
    op.execute("DROP TRIGGER refuse_shared_models ON catalog.prices")
    op.execute("DROP FUNCTION catalog.refuse_shared_models()")
    op.execute("DROP TRIGGER check_models_of_price ON catalog.prices")
    op.execute("DROP FUNCTION catalog.check_models_of_price()")
    op.execute("DROP FUNCTION catalog.models_of(text)")
    op.execute("DROP FUNCTION catalog.price_models(text[], jsonb)")
