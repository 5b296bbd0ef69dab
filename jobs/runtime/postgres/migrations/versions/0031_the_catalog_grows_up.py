"""A row of the catalog may be deleted as of a moment, by somebody: whoever deletes it says so on the row first.

The deletion is told with the row as it was last. A row that says since when it is deleted, and is not, would make a
later deletion say a moment that nobody meant: it is refused.
"""

from alembic import op

revision = "0031"
down_revision = "0030"

DELETED_AT = """
ALTER TABLE catalog.prices ADD COLUMN deleted_at timestamptz
    CHECK (deleted_at >= '1970-01-01 UTC' AND deleted_at < '9000-01-01 UTC');
ALTER TABLE catalog.accounts ADD COLUMN deleted_at timestamptz
    CHECK (deleted_at >= '1970-01-01 UTC' AND deleted_at < '9000-01-01 UTC');
COMMENT ON COLUMN catalog.prices.deleted_at IS
    'Since when its deletion holds, if not since it is committed: set it and delete the row in one transaction.';
COMMENT ON COLUMN catalog.accounts.deleted_at IS
    'Since when its deletion holds, if not since it is committed: set it and delete the row in one transaction.';

CREATE FUNCTION catalog.refuse_undeleted() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
BEGIN
    IF TG_TABLE_NAME = 'prices' THEN
        PERFORM FROM catalog.prices AS p
        WHERE (p.plan, p.model, p.meter, p.currency, p.effective_from)
            = (NEW.plan, NEW.model, NEW.meter, NEW.currency, NEW.effective_from) AND p.deleted_at IS NOT NULL;
    ELSE
        PERFORM FROM catalog.accounts AS a WHERE a.account = NEW.account AND a.deleted_at IS NOT NULL;
    END IF;
    IF FOUND THEN
        RAISE EXCEPTION 'a row of catalog.% has deleted_at and is not deleted: delete it in the same transaction, or '
            'leave deleted_at empty', TG_TABLE_NAME USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER refuse_undeleted AFTER INSERT OR UPDATE OF deleted_at ON catalog.prices
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.deleted_at IS NOT NULL)
    EXECUTE FUNCTION catalog.refuse_undeleted();
CREATE CONSTRAINT TRIGGER refuse_undeleted AFTER INSERT OR UPDATE OF deleted_at ON catalog.accounts
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.deleted_at IS NOT NULL)
    EXECUTE FUNCTION catalog.refuse_undeleted();
"""
NO_DELETED_AT = """
DROP TRIGGER refuse_undeleted ON catalog.prices;
DROP TRIGGER refuse_undeleted ON catalog.accounts;
DROP FUNCTION catalog.refuse_undeleted();
ALTER TABLE catalog.prices DROP COLUMN deleted_at;
ALTER TABLE catalog.accounts DROP COLUMN deleted_at;
"""


def upgrade() -> None:
    """Add the columns, empty."""
    op.execute(DELETED_AT)


def downgrade() -> None:
    """Remove them again."""
    op.execute(NO_DELETED_AT)
