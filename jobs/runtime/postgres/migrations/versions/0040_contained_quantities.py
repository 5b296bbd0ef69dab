"""A straggler says how much of its quantity another meter bills: cached tokens that have a price of their own.

In windows and days such units are a row of price version 0 or -1. A straggler is one row for all of its meter.
"""

from alembic import op

revision = "0040"
down_revision = "0039"

VERSIONS = (
    "'Of catalog.prices; null: without a price. Units that another meter bills, at a unit price of 0 here: 0 those "
    "that a meter within this one bills at its own price; -1 those that have none and are billed by the meter around.'"
)

# The release before adds what has no such units, and reads the amount as ever.
ADDED = f"""
ALTER TABLE stragglers
    ADD COLUMN contained_quantity numeric NOT NULL DEFAULT 0,
    DROP COLUMN amount,
    ADD COLUMN amount numeric GENERATED ALWAYS AS ((quantity - contained_quantity) * unit_price) STORED;
COMMENT ON COLUMN stragglers.contained_quantity IS
    'Of quantity: units that another meter bills. unit_price and price_version are of the rest, if there is any.';
COMMENT ON COLUMN usage_windows.price_version IS {VERSIONS};
COMMENT ON COLUMN usage_days.price_version IS {VERSIONS};
"""
REMOVED = """
ALTER TABLE stragglers
    DROP COLUMN amount,
    DROP COLUMN contained_quantity,
    ADD COLUMN amount numeric GENERATED ALWAYS AS (quantity * unit_price) STORED;
COMMENT ON COLUMN stragglers.amount IS
    'quantity x unit_price, exact: no scale that rounds. Null without a price. Sums of it in numeric lose nothing.';
COMMENT ON COLUMN usage_windows.price_version IS NULL;
COMMENT ON COLUMN usage_days.price_version IS NULL;
"""


def upgrade() -> None:
    """Add the column; the amount is of the rest."""
    op.execute(ADDED)


def downgrade() -> None:
    """Amounts are of all units again."""
    op.execute(REMOVED)
