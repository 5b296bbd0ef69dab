"""Plain names: `catalog.effective_prices` was `catalog.contracts`, `catalog.capture_heartbeats` was `catalog.beats`.

Contracts are of events, and a beat is a heartbeat. The view's earlier name stays for one release. A correction whose
contract came late has the cause `schema_added`; earlier rows keep `contracted`.
"""

from alembic import op

revision = "0062"
down_revision = "0061"

# A renamed view keeps its rights, its comments, and the views of others that are built on it.
RENAME = """
ALTER VIEW catalog.contracts RENAME TO effective_prices;
CREATE VIEW catalog.contracts WITH (security_invoker = true) AS SELECT * FROM catalog.effective_prices;
COMMENT ON VIEW catalog.contracts IS
    'The earlier name of catalog.effective_prices. It goes with the next release.';
"""
# As whoever migrated may have granted the view to roles that Weir does not know.
GRANT = """
DO $$
DECLARE grantee record;
BEGIN
    FOR grantee IN
        SELECT DISTINCT
            CASE WHEN acl.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(acl.grantee)) END AS name
        FROM pg_class, aclexplode(relacl) AS acl
        WHERE pg_class.oid = 'catalog.effective_prices'::regclass
          AND acl.privilege_type = 'SELECT' AND acl.grantee <> relowner
    LOOP
        EXECUTE 'GRANT SELECT ON catalog.contracts TO ' || grantee.name;
    END LOOP;
END $$
"""
CAUSES = (
    *("stream", "duplicate", "rejoined", "repriced", "contracted", "restated", "reversed", "once_per", "schema_added"),
)
CHECKED = """
ALTER TABLE {table} DROP CONSTRAINT {table}_cause_check,
    ADD CONSTRAINT {table}_cause_check CHECK (cause IN ({causes})) NOT VALID
"""
HEARTBEATS = """
ALTER TABLE catalog.{before} RENAME TO {after};
CREATE OR REPLACE FUNCTION catalog.beat() RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
    moment timestamptz := clock_timestamp();
BEGIN
    DELETE FROM catalog.{after} WHERE beat_at < moment - interval '1 hour' OR beat_at > moment;
    INSERT INTO catalog.{after} VALUES (moment, pg_current_wal_insert_lsn()) ON CONFLICT DO NOTHING;
END $$;
"""
TRUNCATED = """
CREATE OR REPLACE FUNCTION catalog.refuse_truncate() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    RAISE EXCEPTION '{sentence}',
        TG_TABLE_NAME USING ERRCODE = 'feature_not_supported';
END $$;
"""
SENTENCES = (
    "TRUNCATE of catalog.% is told to nobody, and usage would go on at what it had: DELETE the rows",
    "TRUNCATE of catalog.% is not captured: usage would still be billed by its rows. DELETE the rows",
)
BACK = """
DROP VIEW catalog.contracts;
ALTER VIEW catalog.effective_prices RENAME TO contracts;
"""


def upgrade() -> None:
    """Rename both, and let those who read the view read its alias."""
    op.execute(RENAME)
    op.execute(GRANT)
    op.execute(HEARTBEATS.format(before="beats", after="capture_heartbeats"))
    op.execute(TRUNCATED.format(sentence=SENTENCES[1]))
    for table in ("corrections", "stragglers"):
        op.execute(CHECKED.format(table=table, causes=", ".join(f"'{cause}'" for cause in CAUSES)))


def downgrade() -> None:
    """The earlier names alone. The cause stays allowed: rows may have it."""
    op.execute(TRUNCATED.format(sentence=SENTENCES[0]))
    op.execute(HEARTBEATS.format(before="capture_heartbeats", after="beats"))
    op.execute(BACK)
