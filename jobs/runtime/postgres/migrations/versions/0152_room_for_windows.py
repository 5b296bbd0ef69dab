"""Pages of windows and months keep room for a new version of each row, and sums of them are kept with less work.

A batch that changes all windows of a minute found room for one in six of them. The others moved to another page, and
each got another entry in every index.
"""

from importlib import import_module
from typing import Any

from alembic import op

revision = "0152"
down_revision = "0151"
is_expansion = True

ROLL_UPS: Any = import_module("jobs.runtime.postgres.migrations.versions.0064_roll_ups")
TEMPORARY: Any = import_module("jobs.runtime.postgres.migrations.versions.0144_temporary_names_come_last")

FILLED_BEFORE = {"usage_windows": 85, "usage_months": 70}
FILLED = 50
HOUR_BEFORE: str = ROLL_UPS._PLACES["usage_windows"]["of_period"]
HOUR = "date_bin('1 hour', window_start, '0001-01-01T00:00Z')"
"""The same instants, without looking up the unit and the zone for each row."""


def _rows(source: str, way: int) -> str:
    """The columns of rows that are added (1) or removed (-1) which sums have; what is removed is negated."""
    sign, of = ("", "new_rows") if way > 0 else ("-", "old_rows")
    summed = ", ".join(f"{sign}{name} AS {name}" for name in ROLL_UPS._SUMMED[source])
    columns = ", ".join([ROLL_UPS._PLACES[source]["at"], *ROLL_UPS._OUTWARDS[source]])
    return f"""
                SELECT account, model, meter, currency, price_version, unit_price, {columns}, {summed}, {way} AS way
                FROM {of}"""


def _function(source: str) -> str:
    """As 0064 has it, but for the hour, and without columns that no sum has."""
    words = ROLL_UPS._words(source)
    words["of_key"] = words["of_key"].replace(HOUR_BEFORE, HOUR)
    words["changes"] = words["changes"].replace("way * ", "")
    both = f"{_rows(source, 1)} UNION ALL {_rows(source, -1)}"
    for name, rows in (("updated", both), ("deleted", _rows(source, -1))):
        words[name] = ROLL_UPS.CHANGED.format(**words, rows=rows)
    return _replaced(ROLL_UPS.FUNCTION.format(**words))


def _replaced(function: str) -> str:
    """Without its triggers, which stay."""
    return function.partition("CREATE TRIGGER")[0].replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION")


def upgrade() -> None:
    """Of rows that are written from now on."""
    for table in FILLED_BEFORE:
        op.execute(f"ALTER TABLE {table} SET (fillfactor = {FILLED})")
    for source in ROLL_UPS._PLACES:
        op.execute(_function(source))
    # A function that is replaced loses its search path.
    TEMPORARY.upgrade()


def downgrade() -> None:
    """As it was; rows stay as they are written."""
    for source in ROLL_UPS._PLACES:
        op.execute(_replaced(ROLL_UPS.FUNCTION.format(**ROLL_UPS._words(source))))
    TEMPORARY.upgrade()
    for table, filled in FILLED_BEFORE.items():
        op.execute(f"ALTER TABLE {table} SET (fillfactor = {filled})")
