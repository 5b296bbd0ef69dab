"""Rows of the catalog are deleted as of a moment; accounts have tags and a parent, and zones that somebody knows.

A deletion is told with the row as it was last, so whoever deletes it says on the row since when. A row that says so and
is not deleted would make a later deletion say a moment that nobody meant: it is refused.
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
CREATE CONSTRAINT TRIGGER refuse_undeleted AFTER INSERT OR UPDATE ON catalog.prices
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.deleted_at IS NOT NULL)
    EXECUTE FUNCTION catalog.refuse_undeleted();
CREATE CONSTRAINT TRIGGER refuse_undeleted AFTER INSERT OR UPDATE ON catalog.accounts
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.deleted_at IS NOT NULL)
    EXECUTE FUNCTION catalog.refuse_undeleted();

-- To the log of changes it is a deletion and another price. What was in force would end, and one that begins before it
-- would not go on from there.
CREATE FUNCTION catalog.refuse_to_move() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    RAISE EXCEPTION 'this price of % has begun, so its effective_from stays: delete it with its effective_from as '
        'deleted_at (then it never was) or as of when it ends, and insert the other', quote_literal(OLD.model)
        USING ERRCODE = 'check_violation';
END $$;
CREATE TRIGGER refuse_to_move BEFORE UPDATE ON catalog.prices FOR EACH ROW
    WHEN (NEW.effective_from <> OLD.effective_from AND OLD.effective_from <= now())
    EXECUTE FUNCTION catalog.refuse_to_move();
"""
NO_DELETED_AT = """
DROP TRIGGER refuse_to_move ON catalog.prices;
DROP FUNCTION catalog.refuse_to_move();
DROP TRIGGER refuse_undeleted ON catalog.prices;
DROP TRIGGER refuse_undeleted ON catalog.accounts;
DROP FUNCTION catalog.refuse_undeleted();
ALTER TABLE catalog.prices DROP COLUMN deleted_at;
ALTER TABLE catalog.accounts DROP COLUMN deleted_at;
"""

# An account that was there before keeps a zone that nobody knows: its months are UTC's, as they were.
ACCOUNTS = r"""
ALTER TABLE catalog.accounts
    ADD COLUMN tags jsonb NOT NULL DEFAULT '{}',
    ADD COLUMN parent text REFERENCES catalog.accounts;
CREATE INDEX accounts_parent ON catalog.accounts (parent) WHERE parent IS NOT NULL;
COMMENT ON COLUMN catalog.accounts.tags IS
    'Texts by name: at most 50, names of at most 64 bytes, texts of at most 256.';
COMMENT ON COLUMN catalog.accounts.parent IS
    'The account whose bill this one is part of: at most 8 stand above each other, and none above itself.';

CREATE FUNCTION catalog.check_account() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
    wrong text;
    -- Of this transaction, between spaces: the view reads hundreds of files, and 10,000 accounts have a few zones.
    known text := coalesce(nullif(current_setting('weir.known_zones', true), ''), ' UTC ');
BEGIN
    IF position(' ' || NEW.timezone || ' ' IN known) = 0 OR NEW.timezone ~ '\s' THEN
        IF (
            NEW.timezone ~ '\s|^(posix|right)/|^(localtime|posixrules|Factory)$'
            OR NOT EXISTS (SELECT FROM pg_timezone_names WHERE name = NEW.timezone)
        ) AND NOT EXISTS (SELECT FROM catalog.accounts WHERE account = NEW.account AND timezone = NEW.timezone) THEN
            RAISE EXCEPTION 'account %: % is no time zone of the IANA database, such as Europe/Berlin',
                quote_literal(NEW.account), quote_literal(NEW.timezone) USING ERRCODE = 'check_violation';
        END IF;
        PERFORM set_config('weir.known_zones', known || NEW.timezone || ' ', true);
    END IF;
    IF jsonb_typeof(NEW.tags) <> 'object' THEN
        wrong := 'must be a JSON object of texts';
    ELSIF (SELECT count(*) FROM jsonb_object_keys(NEW.tags)) > 50 THEN
        wrong := 'must be at most 50';
    ELSE
        SELECT format('%L ', key) || CASE
            WHEN jsonb_typeof(value) <> 'string' THEN 'must be a text'
            WHEN octet_length(key) NOT BETWEEN 1 AND 64 THEN 'must have a name of 1 to 64 bytes'
            WHEN octet_length(value #>> '{}') > 256 THEN 'must be a text of at most 256 bytes' END
        INTO wrong FROM jsonb_each(NEW.tags)
        WHERE jsonb_typeof(value) <> 'string' OR octet_length(key) NOT BETWEEN 1 AND 64
           OR octet_length(value #>> '{}') > 256
        ORDER BY key LIMIT 1;
    END IF;
    IF wrong IS NOT NULL THEN
        RAISE EXCEPTION 'account %: tags: %', quote_literal(NEW.account), wrong USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER check_account BEFORE INSERT OR UPDATE OF timezone, tags ON catalog.accounts
    FOR EACH ROW EXECUTE FUNCTION catalog.check_account();

-- When all rows of a transaction are there. Each row above is locked: of two who make a circle together one waits for
-- the other, and sees it.
CREATE FUNCTION catalog.check_parent() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
    above text[] := ARRAY[NEW.account];
    upper text;
    below integer;
BEGIN
    LOOP
        SELECT parent INTO upper FROM catalog.accounts WHERE account = above[cardinality(above)] FOR SHARE;
        EXIT WHEN upper IS NULL;
        IF upper = ANY (above) THEN
            RAISE EXCEPTION 'account % cannot have the parent %: it stands above itself (%)',
                quote_literal(NEW.account), quote_literal(NEW.parent), array_to_string(above || upper, ' < ')
                USING ERRCODE = 'check_violation';
        END IF;
        above := above || upper;
        EXIT WHEN cardinality(above) > 8;
    END LOOP;
    WITH RECURSIVE lower (account, depth) AS (
        SELECT NEW.account, 0
        UNION ALL
        SELECT a.account, lower.depth + 1 FROM lower JOIN catalog.accounts AS a ON a.parent = lower.account
        WHERE lower.depth < 8
    )
    SELECT max(depth) INTO below FROM lower;
    IF cardinality(above) + below > 8 THEN
        RAISE EXCEPTION 'account % cannot have the parent %: more than 8 accounts would stand above each other',
            quote_literal(NEW.account), quote_literal(NEW.parent) USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER check_parent AFTER INSERT OR UPDATE OF parent ON catalog.accounts
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.parent IS NOT NULL)
    EXECUTE FUNCTION catalog.check_parent();

-- Who may read an account reads what stands below it, as far as those may be read.
CREATE VIEW catalog.accounts_below WITH (security_invoker = true) AS
WITH RECURSIVE below (head, account, depth) AS (
    SELECT account, account, 0 FROM catalog.accounts
    UNION ALL
    SELECT below.head, a.account, below.depth + 1
    FROM below JOIN catalog.accounts AS a ON a.parent = below.account WHERE below.depth < 8
)
SELECT head, account, min(depth) AS depth FROM below GROUP BY head, account;
COMMENT ON VIEW catalog.accounts_below IS 'Every account with itself and all that stand below it, how far each.';
"""
NO_ACCOUNTS = """
DROP VIEW catalog.accounts_below;
DROP TRIGGER check_parent ON catalog.accounts;
DROP TRIGGER check_account ON catalog.accounts;
DROP FUNCTION catalog.check_parent();
DROP FUNCTION catalog.check_account();
ALTER TABLE catalog.accounts DROP COLUMN tags, DROP COLUMN parent;
"""

NEEDED = """
CREATE VIEW catalog.missing_columns AS
SELECT table_name, column_name
FROM (
    VALUES
        ('accounts', '{account,name,plan,currency,timezone,effective_from,changed_by,changed_at}'::text[]),
        ('accounts', '{deleted_at,tags,parent}'),
        ('plans', '{plan}'),
        ('prices', '{plan,model,meter,currency,effective_from,unit_price,changed_by,changed_at,deleted_at}'),
        ('decisions', '{usage_lsn,meter,account,request_id,decision,reason,decided_by}')
) AS needed (table_name, column_names)
CROSS JOIN LATERAL unnest(column_names) AS column_name
WHERE NOT EXISTS (
    SELECT FROM pg_attribute
    WHERE attrelid = to_regclass('catalog.' || table_name) AND attname = column_name AND NOT attisdropped
);
COMMENT ON VIEW catalog.missing_columns IS
    'Columns without which a change of the catalog is rejected: somebody has renamed or dropped them.';
"""
CAPTURE = """
CREATE OR REPLACE VIEW catalog.capture AS
SELECT coalesce(slot.active, false) AS is_active,
       (SELECT max(beat_at) FROM catalog.beats WHERE position < slot.confirmed_flush_lsn) AS captured_until,
       (SELECT min(beat_at) FROM catalog.beats) AS first_beat_at{more}
FROM (SELECT) AS one
LEFT JOIN pg_replication_slots AS slot
    ON slot.database = current_database() AND slot.plugin = 'pgoutput' AND starts_with(slot.slot_name, 'weir_catalog');
COMMENT ON VIEW catalog.capture IS
    'Whether the connector reads the log of changes, and until when whatever was committed is in Kafka.';
"""
# In a view that grows, and so keeps who may read it: whoever may read the one may read the other.
MISSING = """,
       ARRAY(
           SELECT format('catalog.%s.%s', table_name, column_name) FROM catalog.missing_columns ORDER BY 1
       ) AS missing_columns"""


def upgrade() -> None:
    """Add the columns, empty."""
    op.execute(DELETED_AT)
    op.execute(ACCOUNTS)
    op.execute(NEEDED)
    op.execute(CAPTURE.format(more=MISSING))


def downgrade() -> None:
    """Remove them again."""
    op.execute("DROP VIEW catalog.capture")
    op.execute(CAPTURE.format(more=""))
    op.execute("DROP VIEW catalog.missing_columns")
    op.execute(NO_ACCOUNTS)
    op.execute(NO_DELETED_AT)
