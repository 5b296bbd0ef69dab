"""The activity log: what people did to the catalog, to API keys and to records, each entry with the hash before it."""

from alembic import op

revision = "0075"
down_revision = "0072"

LOG = """
CREATE TABLE activity_log (
    number   bigint PRIMARY KEY CHECK (number > 0),
    document text NOT NULL,
    previous text NOT NULL,
    hash     text NOT NULL UNIQUE
);
COMMENT ON TABLE activity_log IS
    'What people did, in the order of commits, chained by hashes. Rows cannot be changed or deleted.';

CREATE TABLE activity_head (
    is_only    boolean PRIMARY KEY DEFAULT true CHECK (is_only),
    changed_by xid8
);
INSERT INTO activity_head DEFAULT VALUES;
COMMENT ON TABLE activity_head IS
    'One row, which each transaction that adds to the activity log changes once: entries have the order of commits.';

-- Whoever inserts gives the document; the number, the hash before and the hash are the trigger's.
CREATE FUNCTION chain_activity() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    -- A transaction waits here for another one, or fails to serialize where its isolation hides what that one added.
    EXECUTE format(
        'UPDATE %I.activity_head SET changed_by = $1 WHERE changed_by IS DISTINCT FROM $1', TG_TABLE_SCHEMA
    ) USING pg_current_xact_id();
    EXECUTE format('SELECT number + 1, hash FROM %I.activity_log ORDER BY number DESC LIMIT 1', TG_TABLE_SCHEMA)
        INTO NEW.number, NEW.previous;
    NEW.number := coalesce(NEW.number, 1);
    NEW.previous := coalesce(NEW.previous, '');
    NEW.document := (NEW.document::jsonb || jsonb_build_object('number', NEW.number))::text;
    NEW.hash := encode(sha256(convert_to(NEW.previous || NEW.document, 'UTF8')), 'hex');
    RETURN NEW;
END $$;

CREATE FUNCTION refuse_other_activity() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    RAISE EXCEPTION '% of % is refused: what was done never changes', lower(TG_OP), TG_TABLE_NAME;
END $$;

CREATE TRIGGER chain_activity BEFORE INSERT ON activity_log FOR EACH ROW EXECUTE FUNCTION chain_activity();
CREATE TRIGGER refuse_change BEFORE UPDATE OR DELETE ON activity_log
    FOR EACH ROW EXECUTE FUNCTION refuse_other_activity();
CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON activity_log
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_other_activity();
ALTER TABLE activity_log ENABLE ALWAYS TRIGGER refuse_change;
ALTER TABLE activity_log ENABLE ALWAYS TRIGGER refuse_truncate;

-- Whoever edits the catalog need not have a right to the log. Instants are in UTC, whatever the session's zone.
CREATE FUNCTION record_activity(
    action text, target text, made_by text, reason text, before jsonb DEFAULT NULL, after jsonb DEFAULT NULL
) RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog SET timezone = 'UTC' AS $$
BEGIN
    INSERT INTO {schema}.activity_log (document) VALUES ((jsonb_strip_nulls(jsonb_build_object(
        'at', clock_timestamp(), 'action', action, 'target', target,
        'made_by', coalesce(nullif(btrim(made_by), ''), session_user), 'role', session_user,
        'reason', nullif(reason, '')
    )) || CASE WHEN before IS NULL THEN '{{}}' ELSE jsonb_build_object('before', before) END
       || CASE WHEN after IS NULL THEN '{{}}' ELSE jsonb_build_object('after', after) END)::text);
END $$;

-- Arguments: the columns that say who and why (or nothing), then those whose values are not logged.
CREATE FUNCTION record_change() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog SET timezone = 'UTC' AS $$
DECLARE
    before jsonb := CASE WHEN TG_OP IN ('UPDATE', 'DELETE') THEN to_jsonb(OLD) - TG_ARGV[2:] END;
    after  jsonb := CASE WHEN TG_OP IN ('INSERT', 'UPDATE') THEN to_jsonb(NEW) - TG_ARGV[2:] END;
BEGIN
    IF before IS NOT DISTINCT FROM after AND TG_OP = 'UPDATE' THEN
        RETURN NULL;
    END IF;
    PERFORM {schema}.record_activity(
        lower(TG_OP), TG_TABLE_SCHEMA || '.' || TG_TABLE_NAME,
        coalesce(after ->> TG_ARGV[0], nullif(btrim(current_setting('weir.changed_by', true)), '')),
        coalesce(after, before) ->> TG_ARGV[1], before, after
    );
    RETURN NULL;
END $$;
REVOKE ALL ON FUNCTION record_activity(text, text, text, text, jsonb, jsonb), record_change() FROM PUBLIC;
"""

# At the commit, check_parent (migration 0031) locks what stands above an account, after the log may be locked.
PARENTS = """
CREATE FUNCTION catalog.lock_parents() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
BEGIN
    PERFORM FROM catalog.accounts WHERE account IN (
        WITH RECURSIVE above (account, height) AS (
            SELECT DISTINCT to_jsonb(n) ->> 'parent', 1 FROM now_there AS n WHERE to_jsonb(n) ->> 'parent' IS NOT NULL
            UNION
            SELECT a.parent, height + 1 FROM above JOIN catalog.accounts AS a USING (account)
            WHERE a.parent IS NOT NULL AND height < 9
        )
        SELECT account FROM above
    ) ORDER BY account FOR SHARE;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION catalog.lock_parents() IS
    'Lock the parents now that check_parent locks at the commit: the log of what people did is locked last.';
CREATE TRIGGER lock_parents_of_inserted AFTER INSERT ON catalog.accounts
    REFERENCING NEW TABLE AS now_there FOR EACH STATEMENT EXECUTE FUNCTION catalog.lock_parents();
CREATE TRIGGER lock_parents_of_updated AFTER UPDATE ON catalog.accounts
    REFERENCING NEW TABLE AS now_there FOR EACH STATEMENT EXECUTE FUNCTION catalog.lock_parents();
"""
NO_PARENTS = """
DROP TRIGGER lock_parents_of_inserted ON catalog.accounts;
DROP TRIGGER lock_parents_of_updated ON catalog.accounts;
DROP FUNCTION catalog.lock_parents();
"""

# Deferred: the lock on the log is the last that a transaction takes, so that two editors cannot wait for each other.
RECORDED = """
CREATE CONSTRAINT TRIGGER {name} AFTER {events} ON {table} DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW {condition} EXECUTE FUNCTION record_change({arguments});
"""
TRUNCATED = """
CREATE TRIGGER record_truncate AFTER TRUNCATE ON {table} FOR EACH STATEMENT EXECUTE FUNCTION record_change({arguments});
"""
EDITED = {
    **dict.fromkeys(("catalog.accounts", "catalog.plans", "catalog.prices", "catalog.limits"), "'changed_by', ''"),
    "catalog.decisions": "'decided_by', 'reason'",
}
WHO_USES_THE_API = {
    ("record_new", "INSERT"): "'created_by', 'note', 'secret_sha256'",
    ("record_change", "UPDATE"): "'revoked_by', 'note', 'secret_sha256'",
    ("record_deletion", "DELETE"): "'', 'note', 'secret_sha256'",
}
OTHERS = (
    ("record_confirmation", "UPDATE", "catalog.price_jumps", "NEW.confirmed_by IS NOT NULL", "'confirmed_by', ''"),
    ("record_skip", "INSERT", "isolated_records", "NEW.reason = 'skipped'", "'asked_by', 'detail'"),
    (
        *("record_withdrawal", "DELETE", "isolated_records"),
        *("OLD.reason = 'skipped' AND OLD.journalled_at IS NULL", "'', 'detail'"),
    ),
)


def upgrade() -> None:
    """Make the log, empty, and record what is done from now on."""
    schema = op.get_bind().exec_driver_sql("SELECT quote_ident(current_schema())").scalar_one()
    op.execute(LOG.format(schema=schema))
    op.execute(PARENTS)
    for table, arguments in EDITED.items():
        events = "INSERT OR UPDATE OR DELETE"
        op.execute(
            RECORDED.format(name="record_change", events=events, table=table, condition="", arguments=arguments)
            + TRUNCATED.format(table=table, arguments=arguments)
        )
    for (name, events), arguments in WHO_USES_THE_API.items():
        op.execute(RECORDED.format(name=name, events=events, table="api_keys", condition="", arguments=arguments))
    for name, events, table, when, arguments in OTHERS:
        condition = f"WHEN ({when})"
        op.execute(RECORDED.format(name=name, events=events, table=table, condition=condition, arguments=arguments))


def downgrade() -> None:
    """Remove it with its entries: save them first with `weir activity --format jsonl`."""
    op.execute(NO_PARENTS)
    for table in EDITED:
        op.execute(f"DROP TRIGGER record_change ON {table}; DROP TRIGGER record_truncate ON {table}")
    for name, _ in WHO_USES_THE_API:
        op.execute(f"DROP TRIGGER {name} ON api_keys")
    for name, _, table, _, _ in OTHERS:
        op.execute(f"DROP TRIGGER {name} ON {table}")
    op.execute(
        "DROP TABLE activity_log, activity_head;"
        "DROP FUNCTION record_change(), record_activity(text, text, text, text, jsonb, jsonb), chain_activity(),"
        " refuse_other_activity()"
    )
