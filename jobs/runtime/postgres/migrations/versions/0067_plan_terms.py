"""A plan may cost a flat fee a month, have a minimum, a maximum and included quantities (`metering.plan_terms`).

These are a row of catalog.prices that prices no usage, as an alias is: so they have a beginning, an end and an author,
and a release that knows nothing of them rejects the row.
"""

from importlib import import_module
from typing import Any

from alembic import op

revision = "0067"
down_revision = "0064"

TIERS: Any = import_module("jobs.runtime.postgres.migrations.versions.0057_price_tiers")
ALIASES: Any = import_module("jobs.runtime.postgres.migrations.versions.0049_model_aliases")

PROBLEM = """
CREATE FUNCTION catalog.plan_terms_problem(terms jsonb) RETURNS text
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog AS $$
DECLARE
    name text;
    meter record;
    problem text;
BEGIN
    IF jsonb_typeof(terms) <> 'object' OR terms ->> 'kind' IS DISTINCT FROM 'plan' THEN
        RETURN 'must be a JSON object whose kind is plan';
    END IF;
    IF terms - '{kind,flat_fee,minimum_amount,maximum_amount,included}'::text[] <> '{}' THEN
        RETURN 'may have kind, flat_fee, minimum_amount, maximum_amount and included';
    END IF;
    IF coalesce(
        terms ->> 'flat_fee', terms ->> 'minimum_amount', terms ->> 'maximum_amount', terms ->> 'included'
    ) IS NULL THEN
        RETURN 'must have at least one of flat_fee, minimum_amount, maximum_amount and included';
    END IF;
    FOREACH name IN ARRAY '{flat_fee,minimum_amount,maximum_amount}'::text[] LOOP
        IF terms ->> name IS NOT NULL THEN
            problem := catalog.decimal_problem(terms -> name, 12, 1e8);
            IF problem IS NOT NULL THEN
                RETURN name || ' ' || problem;
            END IF;
        END IF;
    END LOOP;
    IF (terms ->> 'maximum_amount')::numeric < (terms ->> 'minimum_amount')::numeric THEN
        RETURN 'have a maximum_amount below the minimum_amount';
    END IF;
    IF terms ->> 'included' IS NOT NULL THEN
        IF jsonb_typeof(terms -> 'included') <> 'object' OR (terms -> 'included') ? ''
            OR (SELECT count(*) FROM jsonb_object_keys(terms -> 'included')) > 50
        THEN
            RETURN 'must have at most 50 meters as included, each with its quantity';
        END IF;
        FOR meter IN SELECT key, value FROM jsonb_each(terms -> 'included') LOOP
            problem := catalog.decimal_problem(meter.value, 6, 1e18);
            IF problem IS NULL AND (meter.value #>> '{}')::numeric = 0 THEN
                problem := 'must be more than 0';
            END IF;
            IF problem IS NOT NULL THEN
                RETURN 'included.' || meter.key || ' ' || problem;
            END IF;
        END LOOP;
    END IF;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION catalog.plan_terms_problem(jsonb) IS 'Why these are no terms of a plan; null: they are.';
"""
OF_PRICES = "    problem := catalog.price_terms_problem(NEW.terms);\n"
OF_BOTH = """    IF NEW.terms ->> 'kind' = 'plan' OR NEW.model = 'plan{"+":"month"}' THEN
        problem := catalog.plan_terms_problem(NEW.terms);
        IF problem IS NULL AND (NEW.model, NEW.meter) <> ('plan{"+":"month"}', 'requests') THEN
            problem := 'are of a plan: its model must be ''plan{"+":"month"}'' and its meter requests';
        END IF;
    ELSE
        problem := catalog.price_terms_problem(NEW.terms);
    END IF;
"""
WITHOUT_TERMS = "    IF NEW.terms IS NULL THEN\n"
UNLESS_OF_PLAN = """    IF NEW.terms IS NULL AND NEW.model = 'plan{"+":"month"}' THEN
        RAISE EXCEPTION 'the terms of a plan must be in terms, such as {"kind": "plan", "flat_fee": "50"}'
            USING ERRCODE = 'check_violation';
    END IF;
"""
OF_ALIASES, OF_BOTH_KINDS = "named = '='", "named IN ('=', '+')"
MODEL = r"""model = 'plan{"+":"month"}'"""
COMMENT = """
COMMENT ON COLUMN catalog.prices.terms IS
    'Tiers or a package, of which unit_price is null: {{"kind": "graduated", "tiers": [{{"up_to": "1000", '
    '"unit_price": "0.02"}}, {{"unit_price": "0.01"}}]}}, or {{"kind": "package", "package_size": "1000", '
    '"package_price": "15"}}.{more}';
COMMENT ON TABLE price_ladders IS
    'Each version of prices that have, or had, tiers or packages{every} before usage is priced by it.';
"""
EVERY = "; where a plan has, or had, terms, each version of every price; joins writes it"
# A month that is over may be of a plan that the account no longer has. And usage may be priced by a plan that the
# history no longer knows, until an audit prices it again.
POLICIES = f"""
CREATE POLICY reads_terms_of_plans ON catalog.prices FOR SELECT USING (
    {MODEL} AND plan IN (SELECT plan FROM catalog.account_history)
);
CREATE POLICY reads_terms_of_plans ON catalog.ended_prices FOR SELECT USING (
    {MODEL} AND plan IN (SELECT plan FROM catalog.account_history)
);
CREATE POLICY reads_versions_of_usage ON price_ladders FOR SELECT USING (
    price_version IN (SELECT price_version FROM usage_months WHERE price_version > 0)
);
"""


def _checked(changes: dict[str, str]) -> str:
    """The trigger of migration 0057, with other parts."""
    checked: str = TIERS.CHECKED.partition("CREATE TRIGGER")[0]
    for before, after in changes.items():
        assert before in checked, before
        checked = checked.replace(before, after)
    return checked.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION")


def _attribute(condition: str) -> str:
    """The function of migration 0049, with another condition."""
    listed: str = "CREATE OR REPLACE" + ALIASES.WRITTEN.rpartition("CREATE OR REPLACE")[2]
    assert OF_ALIASES in listed
    return listed.replace(OF_ALIASES, condition)


def upgrade() -> None:
    """Take the terms of plans."""
    op.execute(PROBLEM)
    op.execute(_checked({OF_PRICES: OF_BOTH, WITHOUT_TERMS: UNLESS_OF_PLAN + WITHOUT_TERMS}))
    op.execute(_attribute(OF_BOTH_KINDS))
    more = ' Of a plan: {"kind": "plan", "flat_fee": "50", "minimum_amount": "100", "maximum_amount": "500"}.'
    op.execute(COMMENT.format(more=more, every=EVERY))
    op.execute(POLICIES)


def downgrade() -> None:
    """Take prices and aliases only: `downgrade` refuses while there are terms of plans."""
    for table in ("catalog.prices", "catalog.ended_prices"):
        op.execute(f"DROP POLICY reads_terms_of_plans ON {table}")
    op.execute("DROP POLICY reads_versions_of_usage ON price_ladders")
    op.execute(COMMENT.format(more="", every=", written by joins"))
    op.execute(_attribute(OF_ALIASES))
    op.execute(_checked({}))
    op.execute("DROP FUNCTION catalog.plan_terms_problem(jsonb)")
