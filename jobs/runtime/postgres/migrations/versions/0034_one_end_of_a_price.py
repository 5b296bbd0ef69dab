"""A price that was deleted has one end, which is when the deletion was committed, and none while it is there.

Whoever reads as of an earlier moment (REPEATABLE READ) did not see that it had ended meanwhile, put it there again, and
then nobody could delete it. And a transaction may be long: what began while it was open had not begun by its start.
"""

from alembic import op

revision = "0034"
down_revision = "0033"

_KEY = "plan, model, meter, currency, effective_from"
_OLD, _NEW = (", ".join(f"{row}.{name}" for name in _KEY.split(", ")) for row in ("OLD", "NEW"))

KEPT = f"""
DELETE FROM catalog.ended_prices WHERE ({_KEY}) IN (SELECT {_KEY} FROM catalog.prices);

CREATE OR REPLACE FUNCTION catalog.keep_ended_price() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
BEGIN
    IF TG_OP <> 'INSERT' AND coalesce(OLD.deleted_at, now()) > OLD.effective_from THEN
        INSERT INTO catalog.ended_prices
        VALUES ({_OLD}, OLD.unit_price, OLD.changed_at, coalesce(OLD.deleted_at, now()));
    END IF;
    IF TG_OP <> 'DELETE' THEN
        IF current_setting('transaction_isolation') <> 'read committed' THEN
            -- One that this transaction does not see, and so could not remove, makes it fail: it may be tried again.
            INSERT INTO catalog.ended_prices VALUES ({_NEW}, NEW.unit_price, NEW.changed_at, 'infinity')
            ON CONFLICT DO NOTHING;
        END IF;
        DELETE FROM catalog.ended_prices WHERE ({_KEY}) = ({_NEW});
    END IF;
    RETURN NULL;
END $$;

-- The start of the transaction stands until it is over; what is read in it is already right, but for what begins now.
CREATE FUNCTION catalog.keep_end_of_price() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
    moment timestamptz := clock_timestamp();
BEGIN
    IF moment > OLD.effective_from
        AND NOT EXISTS (SELECT FROM catalog.prices WHERE ({_KEY}) = ({_OLD}))
    THEN
        INSERT INTO catalog.ended_prices AS e VALUES ({_OLD}, OLD.unit_price, OLD.changed_at, moment)
        ON CONFLICT ({_KEY}) DO UPDATE SET ended_at = excluded.ended_at WHERE e.ended_at = now();
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER keep_end_of_price AFTER DELETE OR UPDATE OF {_KEY} ON catalog.prices
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (OLD.deleted_at IS NULL)
    EXECUTE FUNCTION catalog.keep_end_of_price();
"""
BEFORE = """
DROP TRIGGER keep_end_of_price ON catalog.prices;
DROP FUNCTION catalog.keep_end_of_price();
CREATE OR REPLACE FUNCTION catalog.keep_ended_price() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
BEGIN
    IF TG_OP <> 'INSERT' AND coalesce(OLD.deleted_at, now()) > OLD.effective_from THEN
        INSERT INTO catalog.ended_prices VALUES (
            OLD.plan, OLD.model, OLD.meter, OLD.currency, OLD.effective_from, OLD.unit_price, OLD.changed_at,
            coalesce(OLD.deleted_at, now())
        );
    END IF;
    IF TG_OP <> 'DELETE' THEN
        DELETE FROM catalog.ended_prices AS e WHERE (e.plan, e.model, e.meter, e.currency, e.effective_from)
            = (NEW.plan, NEW.model, NEW.meter, NEW.currency, NEW.effective_from);
    END IF;
    RETURN NULL;
END $$;
"""


def upgrade() -> None:
    """Keep it so from now on, and let go what has ended and is there."""
    op.execute(KEPT)


def downgrade() -> None:
    """As it was."""
    op.execute(BEFORE)
