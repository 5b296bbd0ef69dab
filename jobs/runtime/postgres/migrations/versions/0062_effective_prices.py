"""`catalog.contracts` is `catalog.effective_prices`: contracts are of events. The old name stays for one release."""

from alembic import op

revision = "0062"
down_revision = "0055"

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
BACK = """
DROP VIEW catalog.contracts;
ALTER VIEW catalog.effective_prices RENAME TO contracts;
"""


def upgrade() -> None:
    """Rename the view, and let those who read it read the alias."""
    op.execute(RENAME)
    op.execute(GRANT)


def downgrade() -> None:
    """The earlier name alone."""
    op.execute(BACK)
