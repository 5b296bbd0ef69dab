"""A price with conditions is also compared with that of its model without them, which bills where they do not hold."""

from importlib import import_module
from typing import Any

from alembic import op

revision = "0045"
down_revision = "0044"

BEFORE: Any = import_module("jobs.runtime.postgres.migrations.versions.0039_price_jumps")
WORDS = ("replaced", "before", "median")

OTHERS = """        CROSS JOIN LATERAL (
            VALUES (1, 'replaced', j.replaced), (2, 'before', before.unit_price), (3, 'median', medians.median)
        ) AS other (place, compared_with, price)
"""
WITH_PLAIN = f"""        LEFT JOIN LATERAL (
            SELECT p.unit_price FROM catalog.prices AS p
            WHERE strpos(j.model, '{{{{"') > 1 AND (p.plan, p.model, p.meter, p.currency)
                = (j.plan, left(j.model, strpos(j.model, '{{{{"') - 1), j.meter, j.currency)
              AND {BEFORE.SOUND}
            ORDER BY p.effective_from <= j.effective_from DESC,
                     abs(extract(epoch FROM p.effective_from - j.effective_from))
            LIMIT 1
        ) AS plain ON true
        CROSS JOIN LATERAL (
            VALUES (1, 'replaced', j.replaced), (2, 'before', before.unit_price),
                   (3, 'unconditional', plain.unit_price), (4, 'median', medians.median)
        ) AS other (place, compared_with, price)
"""
CHANGES = {
    "CREATE FUNCTION": "CREATE OR REPLACE FUNCTION",
    OTHERS: WITH_PLAIN,
    "WHERE other.compared_with = 'median' AND": "WHERE other.compared_with IN ('unconditional', 'median') AND",
    "OR other.compared_with <> 'median')": "OR other.compared_with NOT IN ('unconditional', 'median'))",
}


def _compared(*words: str) -> str:
    listed = ", ".join(f"'{word}'" for word in words)
    return (
        "ALTER TABLE catalog.price_jumps DROP CONSTRAINT price_jumps_compared_with_check, "
        f"ADD CONSTRAINT price_jumps_compared_with_check CHECK (compared_with IN ({listed})) NOT VALID"
    )


def _judge(changes: dict[str, str]) -> None:
    judged = BEFORE.JUDGED
    for before, after in changes.items():
        judged = judged.replace(before, after)
    for name, rows, then in (("inserted", BEFORE.INSERTED, ""), ("updated", BEFORE.UPDATED, BEFORE.FORGOTTEN)):
        op.execute(judged.format(name=f"judge_{name}_prices", judged=rows, after=then))


def upgrade() -> None:
    """Judge prices so from now on; those that there are stay as they are."""
    op.execute(_compared(*WORDS[:2], "unconditional", WORDS[2]))
    _judge(CHANGES)


def downgrade() -> None:
    """Compare them with what they were compared with before."""
    _judge({"CREATE FUNCTION": "CREATE OR REPLACE FUNCTION"})
    op.execute(_compared(*WORDS))
