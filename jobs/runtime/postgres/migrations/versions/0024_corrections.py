"""Corrections are rows: what a window was, what it is, and which usage changed it after it was shown closed.

Stragglers of earlier releases get theirs, one per usage row and meter, from what the windows are now: about 2 s per
million windows and 7 s per million stragglers. What takes a straggler back has its decision, and so a row beside it.
"""

from alembic import op

revision = "0024"
down_revision = "0023"

# The rule of migration 0003: who names no account sees none.
NAMED = """(
    (SELECT current_setting('weir.accounts', true) = '*')
    OR account = ANY (ARRAY(
        SELECT jsonb_array_elements_text(nullif(nullif(current_setting('weir.accounts', true), ''), '*')::jsonb)
    ))
)"""

SCHEMA = f"""
CREATE TABLE corrections (
    usage_lsn    bigint NOT NULL,
    meter        text NOT NULL,
    usage_lsns   bigint[] NOT NULL CHECK (usage_lsns[1] = usage_lsn),
    window_start timestamptz NOT NULL,
    account      text NOT NULL,
    model        text,
    currency     text,
    dimensions   jsonb,
    cause        text NOT NULL CHECK (cause IN ('stream', 'duplicate', 'rejoined', 'repriced', 'contracted')),
    decision     text CHECK (decision <> 'drop'),
    old_quantity numeric NOT NULL CHECK (old_quantity <> 'NaN'),
    new_quantity numeric NOT NULL CHECK (new_quantity <> 'NaN'),
    old_amount   numeric CHECK (old_amount <> 'NaN'),
    new_amount   numeric CHECK (new_amount <> 'NaN'),
    corrected_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (usage_lsn, meter)
);
CREATE INDEX corrections_by_window ON corrections (window_start, account);
CREATE INDEX corrections_by_time ON corrections (corrected_at);
COMMENT ON TABLE corrections IS
    'Changes of windows (all price versions of one together) after they were shown closed, in the order of usage.';
COMMENT ON COLUMN corrections.usage_lsns IS
    'The rows of usage that made the change; usage_lsn is the lowest.';
COMMENT ON COLUMN corrections.dimensions IS
    'Of the usage that made the change; old and new are of the whole window.';
COMMENT ON COLUMN corrections.decision IS
    'Of the straggler that it is, or that it negates or replaces; null: no straggler.';
COMMENT ON COLUMN corrections.old_amount IS
    'Null as long as nothing of the window has a price, as new_amount.';

ALTER TABLE stragglers ADD COLUMN cause text NOT NULL DEFAULT 'stream'
    CHECK (cause IN ('stream', 'duplicate', 'rejoined', 'repriced', 'contracted'));
COMMENT ON TABLE stragglers IS
    'Received after end + grace: signed quantity and amount that changed the window (correct) or would have (drop). Of '
    'another cause than stream: what takes back or replaces such a row, and has its decision.';

ALTER TABLE corrections ENABLE ROW LEVEL SECURITY;
CREATE POLICY reads_named_accounts ON corrections FOR SELECT USING {NAMED};
"""

# An older billing that still runs would go on with stragglers that have no correction.
FENCE = "UPDATE jobs SET epoch = epoch + 1 WHERE job = 'billing'"

# Backwards from what a window is now: behind its last straggler it is that. An amount of 0 is that of no price.
FILL = """
WITH totals AS (
    SELECT window_start, account, model, meter, currency, sum(quantity) AS quantity, sum(amount) AS amount
    FROM usage_windows GROUP BY 1, 2, 3, 4, 5
), followed AS (
    SELECT *, sum(quantity) OVER later AS later_quantity, coalesce(sum(amount) OVER later, 0) AS later_amount
    FROM stragglers WHERE decision = 'correct'
    WINDOW later AS (
        PARTITION BY window_start, account, model, meter, currency ORDER BY usage_lsn
        ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING
    )
)
INSERT INTO corrections (
    usage_lsn, meter, usage_lsns, window_start, account, model, currency, cause, decision,
    old_quantity, new_quantity, old_amount, new_amount, corrected_at
)
SELECT usage_lsn, followed.meter, ARRAY[usage_lsn], followed.window_start, followed.account, followed.model,
       followed.currency, 'stream', decision,
       trim_scale(totals.quantity - coalesce(later_quantity, 0) - followed.quantity),
       trim_scale(totals.quantity - coalesce(later_quantity, 0)),
       nullif(totals.amount - later_amount - coalesce(followed.amount, 0), 0), nullif(totals.amount - later_amount, 0),
       recorded_at
FROM followed JOIN totals
  ON (totals.window_start, totals.account, totals.meter)
   = (followed.window_start, followed.account, followed.meter)
 AND totals.model IS NOT DISTINCT FROM followed.model AND totals.currency IS NOT DISTINCT FROM followed.currency
ORDER BY usage_lsn, followed.meter
"""


def upgrade() -> None:
    """Make the table, and the corrections that stragglers were."""
    op.execute(FENCE)
    op.execute(SCHEMA)
    op.execute(FILL)


def downgrade() -> None:
    """Remove it again."""
    op.execute("DROP TABLE corrections; ALTER TABLE stragglers DROP COLUMN cause")
