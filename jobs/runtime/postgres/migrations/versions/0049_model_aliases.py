"""A model may have the prices of another from some time on: an alias is a row of catalog.prices that prices nothing.

So it has a beginning, an end and an author as prices have, and a release that knows nothing of it prices nothing by it.
"""

from importlib import import_module
from typing import Any

from alembic import op

revision = "0049"
down_revision = "0048"

BEFORE: Any = import_module("jobs.runtime.postgres.migrations.versions.0046_bands")

WRITTEN = """
CREATE FUNCTION catalog.model_alias(alias text, model text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE BEGIN ATOMIC
    SELECT catalog.price_model(alias, jsonb_build_object('=', model));
END;
COMMENT ON FUNCTION catalog.model_alias(text, text) IS
    'The model of a row of catalog.prices that says whose prices a name has: its meter is requests, its currency XXX, '
    'and its unit_price 0.';

CREATE FUNCTION catalog.aliased_model(model text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE BEGIN ATOMIC
    SELECT CASE WHEN strpos(model, '{"="') > 1 THEN catalog.conditions_of(model) ->> '=' END;
END;
COMMENT ON FUNCTION catalog.aliased_model(text) IS 'Of an alias the model whose prices it has; null of a price.';

CREATE OR REPLACE FUNCTION catalog.is_price_attribute(named text) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER BEGIN ATOMIC
    SELECT named = '=' OR EXISTS (
        SELECT FROM jobs, jsonb_array_elements(config -> 'price_attributes') AS listed
        WHERE job = 'joins' AND listed ? named
    );
END;
"""
# After check_price_model, which has looked at how it is written.
CHECKED = """
CREATE FUNCTION catalog.check_price_of_alias() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
    alias text;
    aliased text;
BEGIN
    IF NOT to_jsonb(NEW) ?& '{plan,model,meter,currency,effective_from,unit_price}'::text[] THEN
        RETURN NEW;
    END IF;
    IF strpos(NEW.model, '{"') < 2 OR NOT catalog.conditions_of(NEW.model) ? '=' THEN
        RETURN NEW;
    END IF;
    alias := left(NEW.model, strpos(NEW.model, '{"') - 1);
    aliased := catalog.aliased_model(NEW.model);
    IF NEW.model <> catalog.model_alias(alias, aliased) OR right(alias, 1) = '*' OR right(aliased, 1) = '*'
        OR strpos(aliased, '{"') > 0 OR alias = aliased OR aliased = ''
        OR (NEW.meter, NEW.currency, NEW.unit_price) <> ('requests', 'XXX', 0)
    THEN
        RAISE EXCEPTION 'the alias % must be catalog.model_alias(alias, model) of two models, each without conditions '
            'and *, with the meter requests, the currency XXX and the unit_price 0', quote_literal(NEW.model)
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER check_price_of_alias BEFORE INSERT OR UPDATE ON catalog.prices
    FOR EACH ROW EXECUTE FUNCTION catalog.check_price_of_alias();
"""


def upgrade() -> None:
    """Take aliases."""
    op.execute(WRITTEN)
    op.execute(CHECKED)


def downgrade() -> None:
    """Take prices only."""
    op.execute("DROP TRIGGER check_price_of_alias ON catalog.prices")
    op.execute("DROP FUNCTION catalog.check_price_of_alias()")
    op.execute(BEFORE.LISTED.partition("CREATE FUNCTION")[0])
    op.execute("DROP FUNCTION catalog.aliased_model(text)")
    op.execute("DROP FUNCTION catalog.model_alias(text, text)")
