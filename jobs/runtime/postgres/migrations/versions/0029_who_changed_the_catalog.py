"""Who changed a row of the catalog, and when, is on the row: the database says it, whoever edits, and in whatever way.

A row that was there before has neither. Statements of an older release name their columns, and go on as they were.
"""

from alembic import op

revision = "0029"
down_revision = "0028"

TABLES = ("catalog.accounts", "catalog.plans", "catalog.prices")

# A name of more bytes would make the change a dead letter, and so the price would be lost: better nothing is changed.
FUNCTION = """
CREATE FUNCTION catalog.keep_author() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    IF TG_OP = 'UPDATE' THEN
        NEW.changed_by := OLD.changed_by;
        NEW.changed_at := OLD.changed_at;
        IF NEW *= OLD THEN
            RETURN NEW;
        END IF;
    END IF;
    NEW.changed_by := coalesce(nullif(btrim(current_setting('weir.changed_by', true)), ''), session_user);
    -- When its time zone begins, too (migration 0008).
    NEW.changed_at := now();
    IF octet_length(NEW.changed_by) > 512 THEN
        RAISE EXCEPTION 'weir.changed_by has % bytes, and a name has at most 512', octet_length(NEW.changed_by);
    END IF;
    RETURN NEW;
END $$;
COMMENT ON FUNCTION catalog.keep_author() IS
    'Who changes a row is who weir.changed_by names, else the role of the session. A change of nothing keeps both.';
"""
COLUMNS = """
ALTER TABLE {table} ADD COLUMN changed_by text, ADD COLUMN changed_at timestamptz;
COMMENT ON COLUMN {table}.changed_by IS
    'Who changed the row last; what a statement gives is not taken. Null: nobody since releases that did not keep it.';
COMMENT ON COLUMN {table}.changed_at IS 'When that was.';
CREATE TRIGGER keep_author BEFORE INSERT OR UPDATE ON {table}
    FOR EACH ROW EXECUTE FUNCTION catalog.keep_author();
"""


def upgrade() -> None:
    """Add both columns, empty, and have them kept from now on."""
    op.execute(FUNCTION)
    for table in TABLES:
        op.execute(COLUMNS.format(table=table))


def downgrade() -> None:
    """Remove them again."""
    for table in TABLES:
        op.execute(f"DROP TRIGGER keep_author ON {table}")
        op.execute(f"ALTER TABLE {table} DROP COLUMN changed_by, DROP COLUMN changed_at")
    op.execute("DROP FUNCTION catalog.keep_author()")
