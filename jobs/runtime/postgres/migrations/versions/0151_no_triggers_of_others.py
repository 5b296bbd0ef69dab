"""Only the owner makes triggers of functions that run with its rights.

Who may run such a function may put it on a temporary table of its own. So a role that may only read could write what
it liked into the histories of accounts, zones and prices. The triggers that are there fire for everybody as before.
"""

from alembic import op

revision = "0151"
down_revision = "0148"
is_expansion = True

# Others may have functions there as well: another role, an extension.
FUNCTIONS = """
SELECT oid::regprocedure::text FROM pg_proc
WHERE pronamespace IN (current_schema()::regnamespace, 'catalog'::regnamespace)
  AND prosecdef AND prorettype = 'trigger'::regtype AND pg_has_role(proowner, 'USAGE')
  AND NOT EXISTS (
      SELECT FROM pg_depend WHERE classid = 'pg_proc'::regclass AND objid = pg_proc.oid AND deptype = 'e'
  )
ORDER BY 1
"""
CLOSED_BEFORE = "record_change()"
"""By migration 0075."""


def _functions() -> list[str]:
    return [name for (name,) in op.get_bind().exec_driver_sql(FUNCTIONS).fetchall()]


def upgrade() -> None:
    """A function that a later migration makes must be closed by it."""
    for function in _functions():
        op.execute(f"REVOKE EXECUTE ON FUNCTION {function} FROM PUBLIC")


def downgrade() -> None:
    """As earlier migrations made them: open to every role."""
    for function in _functions():
        if function.rpartition(".")[2] != CLOSED_BEFORE:
            op.execute(f"GRANT EXECUTE ON FUNCTION {function} TO PUBLIC")
