"""Quantities without a largest number, and amounts that are never added up: quantity x unit price, once per row.

Both tables are written anew behind an ACCESS EXCLUSIVE lock: 7.5 s per million windows on two busy cores, so 75 s for
ten million, and as much disk again until it commits. Who reads or writes them waits. Nothing is rounded: a row whose
amount is no exact product stops the migration and changes nothing.
"""

from alembic import op

revision = "0005"
down_revision = "0004"

PRICED = "quantity <> 0 AND amount IS NOT NULL"
EXACT = """
DO $$
DECLARE wrong bigint;
BEGIN
    SELECT count(*) INTO wrong FROM {table}
    WHERE {priced} AND amount <> quantity * round(amount / quantity, 12) OR quantity = 0 AND amount <> 0;
    IF wrong > 0 THEN
        RAISE EXCEPTION '{table} holds % rows whose amount is not their quantity times one price of 12 decimals', wrong
            USING HINT = 'Nothing was changed. Find them: SELECT * FROM {table} WHERE quantity = 0 AND amount <> 0 '
                'OR quantity <> 0 AND amount <> quantity * round(amount / nullif(quantity, 0), 12)';
    END IF;
END $$
"""

# In the place of the amount, so that no row is written more often than the type of its quantity asks for.
UNIT_PRICES = """
ALTER TABLE {table} RENAME COLUMN amount TO unit_price;
ALTER TABLE {table} DROP CONSTRAINT {table}_amount_check;
ALTER TABLE {table}
    {numeric},
    ALTER COLUMN unit_price TYPE numeric(20, 12)
        USING CASE WHEN quantity <> 0 THEN round(unit_price / quantity, 12) END;
"""

# A price version has one unit price, which a row that came to quantity 0 no longer tells by itself.
FILLED = """
UPDATE {table} AS empty SET unit_price = known.unit_price
FROM (
    SELECT DISTINCT ON (price_version) price_version, unit_price
    FROM (SELECT price_version, unit_price FROM usage_windows UNION ALL
          SELECT price_version, unit_price FROM stragglers) AS priced
    WHERE unit_price IS NOT NULL ORDER BY price_version
) AS known
WHERE empty.unit_price IS NULL AND empty.price_version = known.price_version;
"""

AMOUNTS = """
ALTER TABLE {table}
    ADD COLUMN amount numeric GENERATED ALWAYS AS (quantity * unit_price) STORED,
    ADD CONSTRAINT {table}_quantity_is_a_number CHECK (quantity <> 'NaN'),
    ADD CONSTRAINT {table}_unit_price_is_a_price CHECK (unit_price <> 'NaN' AND unit_price >= 0),
    ADD CONSTRAINT {table}_priced_by_its_version
        CHECK (quantity = 0 OR (unit_price IS NULL) = (price_version IS NULL));
COMMENT ON COLUMN {table}.amount IS
    'quantity x unit_price, exact: no scale that rounds. Null without a price. Sums of it in numeric lose nothing.';
"""

QUANTITIES = {"usage_windows": ("quantity", "late_quantity"), "stragglers": ("quantity",)}


def upgrade() -> None:
    """Give every row its unit price, and quantities a type that does not end."""
    for table, quantities in QUANTITIES.items():
        op.execute(EXACT.format(table=table, priced=PRICED))
        numeric = ", ".join(f"ALTER COLUMN {name} TYPE numeric" for name in quantities)
        op.execute(UNIT_PRICES.format(table=table, numeric=numeric))
    for table in QUANTITIES:
        op.execute(FILLED.format(table=table))
    for table in QUANTITIES:
        op.execute(AMOUNTS.format(table=table))


def downgrade() -> None:
    """Amounts are numbers of their own again. Raises when a quantity or an amount does not fit the old types."""
    for table, quantities in QUANTITIES.items():
        op.execute(
            f"ALTER TABLE {table} ALTER COLUMN amount DROP EXPRESSION;"
            f"ALTER TABLE {table} DROP COLUMN unit_price,"
            f" DROP CONSTRAINT {table}_quantity_is_a_number, ALTER COLUMN amount TYPE numeric(38, 12),"
            f" ADD CONSTRAINT {table}_amount_check CHECK (amount <> 'NaN'),"
            + ", ".join(f"ALTER COLUMN {name} TYPE bigint" for name in quantities)
        )
