"""A price may be said of a number of units (`per`): the database divides, exactly, or says which prices are next to it.

Postgres rounds a quotient (100000.0 / 3 has twelve decimals), and 2 / 1000000 is 0. The column is empty again once its
row is stored, so whatever reads prices reads those of one unit.
"""

from alembic import op

revision = "0038"
down_revision = "0037"

PER = """
ALTER TABLE catalog.prices ADD COLUMN per numeric;
COMMENT ON COLUMN catalog.prices.per IS
    'Of how many units a statement says unit_price: the row keeps the price of one, and this is null.';
"""

# A name that is not there (somebody has renamed the column) must be in no statement that is planned.
DIVIDED = """    per := trim_scale(coalesce((to_jsonb(NEW) ->> 'per')::numeric, 1));
    IF per IN ('NaN', 'Infinity') OR per <= 0 OR per <> trunc(per) THEN
        RAISE EXCEPTION 'a price of % has per %: it must be a positive whole number, such as 1000000',
            quote_literal(NEW.model), per USING ERRCODE = 'check_violation';
    END IF;
    written := NEW.unit_price || CASE per WHEN 1 THEN ' a unit' ELSE ' per ' || per END;
    of_one := CASE per WHEN 1 THEN '' ELSE ' a unit' END;
    IF NEW.unit_price IN ('NaN', 'Infinity') OR NEW.unit_price >= 100000000 * per THEN
        RAISE EXCEPTION 'a price of % is %: it must be less than 100000000%', quote_literal(NEW.model), written,
            of_one USING ERRCODE = 'numeric_value_out_of_range';
    END IF;
    -- Multiplied, and divided without a remainder: both are exact. What is negative, the column itself refuses.
    steps := div(NEW.unit_price * 1000000000000, per);
    IF NEW.unit_price >= 0 THEN
        IF steps * per <> NEW.unit_price * 1000000000000 THEN
            RAISE EXCEPTION 'a price of % is %: it must have at most 12 decimals%: write %', quote_literal(NEW.model),
                written, of_one, (
                    SELECT string_agg(trim_scale(near * per * 0.000000000001)::text, ' or ' ORDER BY near)
                    FROM unnest(ARRAY[steps, steps + 1]) AS near WHERE near < 100000000000000000000
                ) USING ERRCODE = 'check_violation';
        END IF;
        NEW.unit_price := (steps * 0.000000000001)::numeric(20, 12);
    END IF;
    IF to_jsonb(NEW) ? 'per' THEN
        NEW.per := NULL;
    END IF;"""
# Of migration 0036.
REFUSED = """    IF NEW.unit_price IN ('NaN', 'Infinity') OR NEW.unit_price >= 100000000 THEN
        RAISE EXCEPTION 'a price of % is % a unit: it must be less than 100000000', quote_literal(NEW.model),
            NEW.unit_price USING ERRCODE = 'numeric_value_out_of_range';
    END IF;
    IF scale(trim_scale(NEW.unit_price)) > 12 THEN
        RAISE EXCEPTION 'a price of % is % a unit: it must have at most 12 decimals', quote_literal(NEW.model),
            NEW.unit_price USING ERRCODE = 'check_violation';
    END IF;
    NEW.unit_price := NEW.unit_price::numeric(20, 12);"""
CHECKED = """
CREATE OR REPLACE FUNCTION catalog.check_price() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
{declared}BEGIN
    -- While a column has another name nobody is told of the row.
    IF NOT to_jsonb(NEW) ?& '{{plan,model,meter,currency,effective_from,unit_price}}'::text[] THEN
        RETURN NEW;
    END IF;
{number}
    -- What was stored before anybody checked may be stored again, and `weir catalog reconcile` deletes it once more.
    IF NOT catalog.was_declared(NEW.meter)
        AND coalesce(current_setting('weir.takes_any_meter', true), '') <> 'yes'
        AND NOT EXISTS (
            SELECT FROM catalog.prices AS p WHERE (p.plan, p.model, p.meter, p.currency, p.effective_from)
                = (NEW.plan, NEW.model, NEW.meter, NEW.currency, NEW.effective_from)
        )
    THEN
        RAISE EXCEPTION 'a price of % is for the meter %, which no application has ever declared: declare it first '
            '(meters in the configuration), and start them', quote_literal(NEW.model), quote_literal(NEW.meter)
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
"""
VARIABLES = """DECLARE
    per numeric;
    steps numeric;
    written text;
    of_one text;
"""


def upgrade() -> None:
    """Take `per` from now on."""
    op.execute(PER)
    op.execute(CHECKED.format(declared=VARIABLES, number=DIVIDED))


def downgrade() -> None:
    """Take prices of one unit alone again."""
    op.execute(CHECKED.format(declared="", number=REFUSED))
    op.execute("ALTER TABLE catalog.prices DROP COLUMN per")
