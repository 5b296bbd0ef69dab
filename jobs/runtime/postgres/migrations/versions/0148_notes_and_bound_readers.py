"""The activity log says why, and a login that reads may be bound to accounts, whatever its sessions set.

A change has the reason that its transaction sets in `weir.note`, else that of its row; and the name that it puts into
its row or that its transaction sets, never the name of an earlier change. Policies of row-level security
ask `seen_accounts()` instead of the setting `weir.accounts`; of a login in `reader_logins` it gives its row at most.
"""

from collections.abc import Mapping

from alembic import op

revision = "0148"
down_revision = "0147"
is_expansion = True
guarded_tables = ("limited_dimensions",)
"""A reader of the version before adds the days up itself for a value that it does not find there."""

# Arguments: the columns that say who and why (or nothing), then those whose values are not logged.
RECORD_CHANGE = """
CREATE OR REPLACE FUNCTION record_change() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' AS $$
DECLARE
    before jsonb := CASE WHEN TG_OP IN ('UPDATE', 'DELETE') THEN to_jsonb(OLD) - TG_ARGV[2:] END;
    after  jsonb := CASE WHEN TG_OP IN ('INSERT', 'UPDATE') THEN to_jsonb(NEW) - TG_ARGV[2:] END;
BEGIN
    IF before IS NOT DISTINCT FROM after AND TG_OP = 'UPDATE' THEN
        RETURN NULL;
    END IF;
    PERFORM {schema}.record_activity(
        lower(TG_OP), TG_TABLE_SCHEMA || '.' || TG_TABLE_NAME,
        {who},
        {reason}, before, after
    );
    RETURN NULL;
END $$;
"""
NAMED = "nullif(btrim(current_setting('weir.changed_by', true)), '')"
# An update that leaves the row's name says nothing of who made it: that one made an earlier change.
WHO_CHANGED = f"""coalesce(
            CASE WHEN before ->> TG_ARGV[0] IS DISTINCT FROM after ->> TG_ARGV[0] THEN after ->> TG_ARGV[0] END, {NAMED}
        )"""
WHO_IS_IN_THE_ROW = f"coalesce(after ->> TG_ARGV[0], {NAMED})"
WHY_OF_THE_ROW = "coalesce(after, before) ->> TG_ARGV[1]"
WHY_OF_THE_CHANGE = f"coalesce(nullif(btrim(current_setting('weir.note', true)), ''), {WHY_OF_THE_ROW})"


READERS = """
CREATE TABLE reader_logins (
    login    text PRIMARY KEY,
    accounts jsonb NOT NULL CHECK (
        jsonb_typeof(accounts) = 'array' AND NOT jsonb_path_exists(accounts, '$[*] ? (@.type() <> "string")')
    )
);
COMMENT ON TABLE reader_logins IS
    'Logins that see these accounts at most, whatever their sessions set; others see what they set.';
CREATE CONSTRAINT TRIGGER record_change AFTER INSERT OR UPDATE OR DELETE ON reader_logins
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION record_change('', '');
CREATE TRIGGER record_truncate AFTER TRUNCATE ON reader_logins
    FOR EACH STATEMENT EXECUTE FUNCTION record_change('', '');

-- A name that is mistyped would bind nobody, and the login that was meant would see all.
CREATE FUNCTION refuse_unknown_login() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = NEW.login) THEN
        RAISE EXCEPTION 'there is no role %: CREATE ROLE, then bind it', quote_ident(NEW.login)
            USING ERRCODE = 'undefined_object';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER refuse_unknown_login BEFORE INSERT OR UPDATE ON reader_logins
    FOR EACH ROW EXECUTE FUNCTION refuse_unknown_login();

-- As `weir.accounts` has it: * or a list. The login is that of the session: no SET ROLE changes it.
CREATE FUNCTION seen_accounts() RETURNS text
LANGUAGE plpgsql STABLE PARALLEL SAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    named text := nullif(current_setting('weir.accounts', true), '');
    bound jsonb := (SELECT accounts FROM {schema}.reader_logins WHERE login = session_user);
BEGIN
    RETURN CASE
        WHEN bound IS NULL THEN named
        -- Not NULL, for which pool_parts answers for all.
        WHEN named IS NULL THEN '[]'
        WHEN named = '*' THEN bound::text
        ELSE (SELECT coalesce(jsonb_agg(account), '[]')::text
              FROM jsonb_array_elements_text(named::jsonb) AS account WHERE bound ? account)
    END;
END $$;
-- Also where the defaults of the database grant nothing: each policy calls it as who reads.
GRANT EXECUTE ON FUNCTION seen_accounts() TO PUBLIC;

-- Limits of all accounts name these values.
ALTER TABLE limited_dimensions ENABLE ROW LEVEL SECURITY;
CREATE POLICY reads_everything ON limited_dimensions FOR SELECT USING ((SELECT {schema}.seen_accounts() = '*'));
"""
POLICIES = """
SELECT quote_ident(schemaname) || '.' || quote_ident(tablename), quote_ident(policyname), qual, with_check
FROM pg_policies
WHERE schemaname IN (current_schema(), 'catalog') AND concat(qual, with_check) ~ 'weir[.]accounts|seen_accounts'
ORDER BY 1, 2
"""
FUNCTION = "SELECT pg_get_functiondef(to_regprocedure('pool_parts(date, text[])'))"
SETTING, STORED_SETTING = "current_setting('weir.accounts', true)", "current_setting('weir.accounts'::text, true)"
"""As it is written, and as Postgres gives back what it has stored."""


def _ask(replacements: Mapping[str, str]) -> None:
    """Let each policy ask for something else: texts of policies, and what replaces them, in this order."""
    for table, policy, using, check in op.get_bind().exec_driver_sql(POLICIES).fetchall():
        changed = []
        for word, clause in (("USING", using), ("WITH CHECK", check)):
            text = clause
            for before, after in replacements.items():
                text = text and text.replace(before, after)
            changed += [f"{word} ({text})"] if text else []
        op.execute(f"ALTER POLICY {policy} ON {table} {' '.join(changed)}")


def _change_pool_parts(before: str, after: str) -> None:
    text = op.get_bind().exec_driver_sql(FUNCTION).scalar_one()
    op.execute(text.replace(before, after))


def upgrade() -> None:
    """Entries stay as they are, and no login is bound."""
    schema = op.get_bind().exec_driver_sql("SELECT quote_ident(current_schema())").scalar_one()
    op.execute(RECORD_CHANGE.format(schema=schema, who=WHO_CHANGED, reason=WHY_OF_THE_CHANGE))
    op.execute(READERS.format(schema=schema))
    # Once per statement, also where a policy compares it with each row.
    seen, of_row = f"{schema}.seen_accounts()", "of_accounts = "
    _ask({of_row + STORED_SETTING: f"{of_row}(SELECT {seen})", STORED_SETTING: seen})
    _change_pool_parts(SETTING, f"{schema}.seen_accounts()")


def downgrade() -> None:
    """Reasons that were given stay in the log. Logins that are bound see whatever they set again."""
    schema = op.get_bind().exec_driver_sql("SELECT quote_ident(current_schema())").scalar_one()
    _change_pool_parts(f"{schema}.seen_accounts()", SETTING)
    # As Postgres gives it back where the schema is on the path.
    op.execute("DROP POLICY reads_everything ON limited_dimensions")
    op.execute("ALTER TABLE limited_dimensions DISABLE ROW LEVEL SECURITY")
    _ask({"( SELECT seen_accounts() AS seen_accounts)": STORED_SETTING, "seen_accounts()": STORED_SETTING})
    op.execute("DROP TABLE reader_logins; DROP FUNCTION seen_accounts(), refuse_unknown_login()")
    op.execute(RECORD_CHANGE.format(schema=schema, who=WHO_IS_IN_THE_ROW, reason=WHY_OF_THE_ROW))
