"""Functions with a search path look into the session's temporary schema last: who calls them cannot name their types.

Where a path does not name `pg_temp`, it is searched first for tables and types. A role that may only read could declare
a domain `pg_temp.name` with a check of its own, and `pool_parts` would have run that check with its owner's rights.
"""

from typing import Any

from alembic import op

revision = "0144"
down_revision = "0141"
is_expansion = True

PATHS = """
SELECT oid::regprocedure::text, substr(setting, length('search_path=') + 1)
FROM pg_proc CROSS JOIN unnest(proconfig) AS setting
WHERE pronamespace IN (current_schema()::regnamespace, 'catalog'::regnamespace) AND prokind = 'f'
  AND starts_with(setting, 'search_path=') AND (setting ~ 'pg_temp$') = {has_it}
  -- Others may have functions there as well: another role, an extension, who leaves the path empty.
  AND pg_has_role(proowner, 'USAGE') AND setting <> 'search_path=""'
  AND NOT EXISTS (
      SELECT FROM pg_depend WHERE classid = 'pg_proc'::regclass AND objid = pg_proc.oid AND deptype = 'e'
  )
ORDER BY 1
"""
LAST = ", pg_temp"


def _paths(*, has_it: bool) -> list[Any]:
    return list(op.get_bind().exec_driver_sql(PATHS.format(has_it=has_it)).fetchall())


def upgrade() -> None:
    """A function that a later migration makes must say it itself."""
    for function, path in _paths(has_it=False):
        op.execute(f"ALTER FUNCTION {function} SET search_path = {path}{LAST}")


def downgrade() -> None:
    """The functions of earlier migrations as they made them."""
    for function, path in _paths(has_it=True):
        op.execute(f"ALTER FUNCTION {function} SET search_path = {path.removesuffix(LAST)}")
