"""The activity log says why: a change has the reason that its transaction sets in `weir.note`, else that of its row."""

from alembic import op

revision = "0148"
down_revision = "0144"
is_expansion = True

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
        coalesce(after ->> TG_ARGV[0], nullif(btrim(current_setting('weir.changed_by', true)), '')),
        {reason}, before, after
    );
    RETURN NULL;
END $$;
"""
OF_THE_ROW = "coalesce(after, before) ->> TG_ARGV[1]"
OF_THE_CHANGE = f"coalesce(nullif(btrim(current_setting('weir.note', true)), ''), {OF_THE_ROW})"


def _replace(reason: str) -> None:
    schema = op.get_bind().exec_driver_sql("SELECT quote_ident(current_schema())").scalar_one()
    op.execute(RECORD_CHANGE.format(schema=schema, reason=reason))


def upgrade() -> None:
    """Entries stay as they are."""
    _replace(OF_THE_CHANGE)


def downgrade() -> None:
    """Reasons that were given stay in the log."""
    _replace(OF_THE_ROW)
