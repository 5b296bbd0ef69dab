"""A price may have tiers or packages instead of a unit price: its `terms` (`metering.price_tiers`).

joins stores what a version on a ladder costs in `price_ladders`, before any usage is priced by it: a bill's lines are
functions of a month's total and of these rows.
"""

import re
from collections.abc import Callable
from importlib import import_module
from typing import Any

from alembic import op

revision = "0057"
down_revision = "0056"

JUMPS: Any = import_module("jobs.runtime.postgres.migrations.versions.0045_jumps_of_conditions")
ENDS: Any = import_module("jobs.runtime.postgres.migrations.versions.0034_one_end_of_a_price")

# In the form that follows the table to another schema.
TERMS = """
ALTER TABLE catalog.prices ADD COLUMN terms jsonb, ALTER unit_price DROP NOT NULL;
COMMENT ON COLUMN catalog.prices.terms IS
    'Tiers or a package, of which unit_price is null: {"kind": "graduated", "tiers": [{"up_to": "1000", "unit_price": '
    '"0.02"}, {"unit_price": "0.01"}]}, or {"kind": "package", "package_size": "1000", "package_price": "15"}.';
ALTER TABLE catalog.ended_prices ADD COLUMN terms jsonb, ALTER unit_price DROP NOT NULL;

CREATE FUNCTION catalog.is_of_period(named text) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER BEGIN ATOMIC
    SELECT EXISTS (SELECT FROM meters WHERE meter = named AND period IS NOT NULL);
END;
COMMENT ON FUNCTION catalog.is_of_period(text) IS 'Whether a meter bills whole days or months.';

CREATE FUNCTION catalog.decimal_problem(given jsonb, decimals integer, below numeric) RETURNS text
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog AS $$
DECLARE
    written text := given #>> '{}';
BEGIN
    IF coalesce(jsonb_typeof(given), 'null') NOT IN ('string', 'number')
        OR written !~ '^[0-9]{1,40}([.][0-9]{1,40})?$'
    THEN
        RETURN 'must be a decimal number of at least 0';
    END IF;
    IF written::numeric >= below THEN
        RETURN 'must be less than ' || below;
    END IF;
    IF scale(trim_scale(written::numeric)) > decimals THEN
        RETURN 'must have at most ' || decimals || ' decimals';
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION catalog.price_terms_problem(terms jsonb) RETURNS text
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog AS $$
DECLARE
    kind text := terms ->> 'kind';
    tier jsonb;
    number integer := 0;
    tiers integer;
    bound numeric;
    before numeric := 0;
    problem text;
BEGIN
    IF jsonb_typeof(terms) <> 'object' OR kind IS NULL OR kind NOT IN ('graduated', 'volume', 'package') THEN
        RETURN 'must be a JSON object whose kind is graduated, volume or package';
    END IF;
    IF kind = 'package' THEN
        IF terms - '{kind,package_size,package_price}'::text[] <> '{}' THEN
            RETURN 'may have kind, package_size and package_price';
        END IF;
        problem := catalog.decimal_problem(terms -> 'package_size', 6, 1e18);
        IF problem IS NULL AND (terms ->> 'package_size')::numeric = 0 THEN
            problem := 'must be more than 0';
        END IF;
        RETURN coalesce(
            'package_size ' || problem, 'package_price ' || catalog.decimal_problem(terms -> 'package_price', 12, 1e8)
        );
    END IF;
    IF terms - '{kind,tiers}'::text[] <> '{}' OR coalesce(jsonb_typeof(terms -> 'tiers'), '') <> 'array' THEN
        RETURN 'must have kind and tiers, a list';
    END IF;
    tiers := jsonb_array_length(terms -> 'tiers');
    IF tiers NOT BETWEEN 1 AND 100 THEN
        RETURN 'must have 1 to 100 tiers';
    END IF;
    FOR tier IN SELECT value FROM jsonb_array_elements(terms -> 'tiers') LOOP
        IF jsonb_typeof(tier) <> 'object' OR tier - '{up_to,unit_price,flat_price}'::text[] <> '{}' THEN
            RETURN 'tiers.' || number || ' may have up_to, unit_price and flat_price';
        END IF;
        problem := catalog.decimal_problem(tier -> 'unit_price', 12, 1e8);
        IF problem IS NOT NULL THEN
            RETURN 'tiers.' || number || '.unit_price ' || problem;
        END IF;
        IF tier ->> 'flat_price' IS NOT NULL THEN
            problem := catalog.decimal_problem(tier -> 'flat_price', 12, 1e8);
            IF problem IS NOT NULL THEN
                RETURN 'tiers.' || number || '.flat_price ' || problem;
            END IF;
        END IF;
        IF number = tiers - 1 THEN
            IF tier ->> 'up_to' IS NOT NULL THEN
                RETURN 'tiers.' || number || '.up_to must be left out: the last tier has no bound';
            END IF;
        ELSE
            problem := catalog.decimal_problem(tier -> 'up_to', 6, 1e18);
            IF problem IS NULL THEN
                bound := (tier ->> 'up_to')::numeric;
                IF bound <= before THEN
                    problem := 'must be more than ' || before;
                END IF;
                before := bound;
            END IF;
            IF problem IS NOT NULL THEN
                RETURN 'tiers.' || number || '.up_to ' || problem;
            END IF;
        END IF;
        number := number + 1;
    END LOOP;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION catalog.price_terms_problem(jsonb) IS 'Why these terms are no price; null: they are one.';

CREATE FUNCTION catalog.usual_unit_price(terms jsonb) RETURNS numeric
LANGUAGE sql IMMUTABLE PARALLEL SAFE BEGIN ATOMIC
    SELECT CASE terms ->> 'kind'
        WHEN 'package' THEN
            div((terms ->> 'package_price')::numeric * 1000000000000, (terms ->> 'package_size')::numeric)
            * 0.000000000001
        ELSE coalesce(
            (
                SELECT (tier.value ->> 'unit_price')::numeric
                FROM jsonb_array_elements(terms -> 'tiers') WITH ORDINALITY AS tier (value, place)
                WHERE (tier.value ->> 'unit_price')::numeric > 0 ORDER BY place LIMIT 1
            ), 0
        )
    END;
END;
COMMENT ON FUNCTION catalog.usual_unit_price(jsonb) IS
    'The price of one unit to compare with other prices: of the first tier that is not free. Nothing is billed by it.';
"""
# Its name puts it before check_price, which reads the unit price.
CHECKED = """
CREATE FUNCTION catalog.check_kind_of_price() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
    problem text;
BEGIN
    -- While a column has another name nobody is told of the row.
    IF NOT to_jsonb(NEW) ?& '{model,meter,unit_price,terms,per}'::text[] THEN
        RETURN NEW;
    END IF;
    IF NEW.terms IS NULL THEN
        IF NEW.unit_price IS NULL THEN
            RAISE EXCEPTION 'a price of % has no unit_price: it must have one, or terms', quote_literal(NEW.model)
                USING ERRCODE = 'not_null_violation';
        END IF;
        RETURN NEW;
    END IF;
    problem := catalog.price_terms_problem(NEW.terms);
    IF problem IS NULL AND (NEW.unit_price IS NOT NULL OR NEW.per IS NOT NULL) THEN
        problem := 'stand beside unit_price or per: set both to null, as the terms say the prices';
    ELSIF problem IS NULL AND strpos(NEW.model, '{"="') > 1 THEN
        problem := 'stand beside an alias, which prices nothing: leave them out';
    ELSIF problem IS NULL AND catalog.is_of_period(NEW.meter) THEN
        problem := 'are for the meter ' || quote_literal(NEW.meter)
            || ', which bills whole periods: it can only have a unit_price';
    END IF;
    IF problem IS NOT NULL THEN
        RAISE EXCEPTION 'a price of %: its terms %', quote_literal(NEW.model), problem
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER check_kind_of_price BEFORE INSERT OR UPDATE ON catalog.prices
    FOR EACH ROW EXECUTE FUNCTION catalog.check_kind_of_price();
"""
LADDERS = """
CREATE TABLE price_ladders (
    price_version  bigint PRIMARY KEY,
    plan           text NOT NULL,
    model          text NOT NULL,
    meter          text NOT NULL,
    currency       text NOT NULL,
    effective_from timestamptz NOT NULL,
    unit_price     numeric,
    terms          text,
    CHECK ((unit_price IS NULL) <> (terms IS NULL))
);
COMMENT ON TABLE price_ladders IS
    'Each version of prices that have, or had, tiers or packages, written by joins before usage is priced by it.';
ALTER TABLE price_ladders ENABLE ROW LEVEL SECURITY;
CREATE POLICY reads_named_accounts ON price_ladders FOR SELECT USING (
    (SELECT current_setting('weir.accounts', true) = '*') OR plan IN (SELECT plan FROM catalog.account_history)
);
"""
# A row without a unit price is unpriced (no version), or priced by its month's total. Older rows obey a
# stricter rule, so they need not be read.
_CHECK = """
ALTER TABLE {table} DROP CONSTRAINT {table}_priced_by_its_version,
    ADD CONSTRAINT {table}_priced_by_its_version CHECK (quantity = 0 OR {rule}){valid};
"""
BY_VERSION = "(unit_price IS NULL) = (price_version IS NULL)"
BY_TOTAL = "unit_price IS NULL OR price_version IS NOT NULL"
PRICED = ("usage_windows", "stragglers")

# What ends keeps its terms, in the last column of the table.
ENDED = {
    "coalesce(OLD.deleted_at, now()))": "coalesce(OLD.deleted_at, now()), {OLD})",
    "'infinity')": "'infinity', {NEW})",
    "OLD.changed_at, moment)": "OLD.changed_at, moment, {OLD})",
}


def _ended(changes: dict[str, str]) -> str:
    """The functions that keep what ends, of migration 0034, with other lists of values."""
    kept: str = ENDS.KEPT.partition("CREATE OR REPLACE")[2]
    kept = "CREATE OR REPLACE" + kept.partition("CREATE CONSTRAINT TRIGGER")[0]
    for before, after in changes.items():
        assert before in kept, before
        kept = kept.replace(before, after)
    for row in ("OLD", "NEW"):
        kept = kept.replace(f"{{{row}}}", f"nullif(to_jsonb({row}) -> 'terms', 'null')")
    return kept.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION")


def _needed(*terms: str) -> str:
    """The view of the columns that capture needs, of migration 0031."""
    before: Any = import_module("jobs.runtime.postgres.migrations.versions.0031_the_catalog_grows_up")
    view: str = before.NEEDED.replace("CREATE VIEW", "CREATE OR REPLACE VIEW")
    listed = "unit_price,changed_by,changed_at,deleted_at"
    assert listed in view
    return view.replace(listed, ",".join([listed, *terms]))


def _judge(of_one: Callable[[str], str]) -> None:
    """The guard of migrations 0039 and 0045; `of_one` changes what it compares prices by."""
    before = JUMPS.BEFORE
    judged = before.JUDGED
    for old, new in JUMPS.CHANGES.items():
        judged = judged.replace(old, new)
    for name, rows, then in (("inserted", before.INSERTED, ""), ("updated", before.UPDATED, before.FORGOTTEN)):
        op.execute(of_one(judged.format(name=f"judge_{name}_prices", judged=rows, after=then)))
    forget = before.TRIGGERS.partition("CREATE TRIGGER")[0].replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION")
    op.execute(of_one(forget))


def _by_terms(function: str) -> str:
    """Prices of terms are compared by their usual unit price."""
    usual = r"coalesce(\1.unit_price, catalog.usual_unit_price(\1.terms))"
    selected = function.replace(
        "unit_price, changed_by, changed_at, NULL::numeric",
        "coalesce(unit_price, catalog.usual_unit_price(terms)) AS unit_price, changed_by, changed_at, NULL::numeric",
    )
    for listed in ("n.unit_price, n.changed_by", "p.unit_price, p.changed_at", "p.unit_price FROM catalog.prices"):
        selected = selected.replace(listed, listed.replace(".unit_price", ".unit_price AS unit_price"))
    return re.sub(r"\b([pnw])\.unit_price", usual, selected)


def upgrade() -> None:
    """Take terms. What is stored stays as it is."""
    op.execute(TERMS)
    op.execute(CHECKED)
    op.execute(LADDERS)
    for table in PRICED:
        op.execute(_CHECK.format(table=table, rule=BY_TOTAL, valid=" NOT VALID"))
    op.execute(_ended(ENDED))
    op.execute(_needed("terms"))
    _judge(_by_terms)


def downgrade() -> None:
    """Take unit prices only: `downgrade` refuses while there are others."""
    _judge(str)
    op.execute(_needed())
    op.execute(_ended({}))
    for table in PRICED:
        op.execute(_CHECK.format(table=table, rule=BY_VERSION, valid=""))
    op.execute("DROP TABLE price_ladders")
    op.execute("DROP TRIGGER check_kind_of_price ON catalog.prices; DROP FUNCTION catalog.check_kind_of_price()")
    for function in (
        *("usual_unit_price(jsonb)", "price_terms_problem(jsonb)", "decimal_problem(jsonb, integer, numeric)"),
        "is_of_period(text)",
    ):
        op.execute(f"DROP FUNCTION catalog.{function}")
    op.execute("ALTER TABLE catalog.ended_prices DROP COLUMN terms, ALTER unit_price SET NOT NULL")
    op.execute("ALTER TABLE catalog.prices DROP COLUMN terms, ALTER unit_price SET NOT NULL")
