"""A condition of a price may be a band of what an event reports: `price_attributes` has an object for it."""

from alembic import op

revision = "0046"
down_revision = "0045"

LISTED = """
CREATE OR REPLACE FUNCTION catalog.is_price_attribute(named text) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER BEGIN ATOMIC
    SELECT EXISTS (
        SELECT FROM jobs, jsonb_array_elements(config -> 'price_attributes') AS listed
        WHERE job = 'joins' AND listed ? named
    );
END;
CREATE FUNCTION catalog.bands_of(named text) RETURNS jsonb
LANGUAGE sql STABLE SECURITY DEFINER BEGIN ATOMIC
    SELECT listed -> named -> 'bands' FROM jobs, jsonb_array_elements(config -> 'price_attributes') AS listed
    WHERE job = 'joins' AND jsonb_typeof(listed) = 'object' AND listed ? named;
END;
COMMENT ON FUNCTION catalog.bands_of(text) IS
    'Of a price attribute with bands their names and upper bounds; null of any other.';
"""
# After check_price_model, which has looked at how the conditions are written.
CHECKED = """
CREATE FUNCTION catalog.check_price_of_bands() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
    wrong record;
BEGIN
    IF NOT to_jsonb(NEW) ? 'model' THEN
        RETURN NEW;
    END IF;
    IF strpos(NEW.model, '{"') < 2 OR coalesce(current_setting('weir.takes_any_meter', true), '') = 'yes' THEN
        RETURN NEW;
    END IF;
    SELECT key, value, (SELECT string_agg(name, ', ' ORDER BY bound::numeric) FROM jsonb_each_text(bands)
        AS band (name, bound)) AS named
    INTO wrong
    FROM jsonb_each_text(catalog.conditions_of(NEW.model)), catalog.bands_of(key) AS bands
    WHERE NOT bands ? value
    ORDER BY key LIMIT 1;
    -- What was stored before may be stored again.
    IF FOUND AND NOT EXISTS (
        SELECT FROM catalog.prices AS p WHERE (p.plan, p.model, p.meter, p.currency, p.effective_from)
            = (NEW.plan, NEW.model, NEW.meter, NEW.currency, NEW.effective_from)
    ) THEN
        RAISE EXCEPTION 'a price of % is for the band % of %, which is none: it can be one of %',
            quote_literal(NEW.model), quote_literal(wrong.value), quote_literal(wrong.key), wrong.named
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER check_price_of_bands BEFORE INSERT OR UPDATE ON catalog.prices
    FOR EACH ROW EXECUTE FUNCTION catalog.check_price_of_bands();
"""
BEFORE = """
CREATE OR REPLACE FUNCTION catalog.is_price_attribute(named text) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER BEGIN ATOMIC
    SELECT EXISTS (SELECT FROM jobs WHERE job = 'joins' AND config -> 'price_attributes' ? named);
END;
"""


def upgrade() -> None:
    """Take conditions on bands that there are."""
    op.execute(LISTED)
    op.execute(CHECKED)


def downgrade() -> None:
    """Take only those on columns."""
    op.execute("DROP TRIGGER check_price_of_bands ON catalog.prices")
    op.execute("DROP FUNCTION catalog.check_price_of_bands()")
    op.execute("DROP FUNCTION catalog.bands_of(text)")
    op.execute(BEFORE)
