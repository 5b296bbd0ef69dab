"""What the database keeps as text names no schema: a function finds its tables whatever the caller's search_path is.

Where the tables live is decided before the steps run (`jobs.runtime.postgres.own_schema`): a new table is made there.
"""

from alembic import op

revision = "0037"
down_revision = "0036"

SPANS = """
CREATE OR REPLACE FUNCTION usage_spans(first date, last date)
RETURNS TABLE (account text, day date, starts timestamptz, ends timestamptz)
LANGUAGE sql STABLE {begin}
    WITH days AS (
        SELECT account, day, min(first_window) AS starts, max(last_window_end) AS ends
        FROM usage_days WHERE (first IS NULL OR day >= first) AND (last IS NULL OR day <= last)
        GROUP BY account, day
    ), followed AS (
        SELECT *, max(ends) OVER (
            PARTITION BY account ORDER BY starts, day ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS ended FROM days
    ), numbered AS (
        SELECT *, count(*) FILTER (WHERE starts >= ended) OVER (PARTITION BY account ORDER BY starts, day) AS span
        FROM followed
    )
    SELECT account, day, min(starts) OVER same, max(ends) OVER same
    FROM numbered WINDOW same AS (PARTITION BY account, span){end}
"""


def upgrade() -> None:
    """Bind the function to its table. A search_path of its own would keep it from being planned with its caller."""
    op.execute(SPANS.format(begin="BEGIN ATOMIC", end="; END"))


def downgrade() -> None:
    """Let it look for its table again."""
    op.execute(SPANS.format(begin="AS $$", end="$$"))
