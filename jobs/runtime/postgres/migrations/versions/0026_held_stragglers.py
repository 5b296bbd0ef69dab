"""Stragglers may wait for somebody's decision: what holds them, who decided and why, and where people write it down.

No row is held before this version's billing runs, so an older one that still runs goes on rightly until it is followed.
What a straggler was made of (its day, its dimensions, what it corrects) is kept from now on.
"""

from alembic import op

revision = "0026"
down_revision = "0025"

# The rule of migration 0003: who names no account sees none.
NAMED = """(
    (SELECT current_setting('weir.accounts', true) = '*')
    OR account = ANY (ARRAY(
        SELECT jsonb_array_elements_text(nullif(nullif(current_setting('weir.accounts', true), ''), '*')::jsonb)
    ))
)"""

DECISIONS = f"""
CREATE TABLE catalog.decisions (
    usage_lsn  bigint NOT NULL CHECK (usage_lsn > 0),
    meter      text NOT NULL CHECK (meter <> ''),
    account    text NOT NULL CHECK (account <> ''),
    request_id text NOT NULL CHECK (request_id <> ''),
    decision   text NOT NULL CHECK (decision IN ('approve', 'reject')),
    reason     text NOT NULL CHECK (reason <> ''),
    decided_by text NOT NULL CHECK (decided_by <> ''),
    decided_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (usage_lsn, meter)
);
COMMENT ON TABLE catalog.decisions IS
    'What people decided about stragglers that wait. Whoever is first has decided; billing applies it (stragglers).';
ALTER TABLE catalog.decisions ENABLE ROW LEVEL SECURITY;
CREATE POLICY reads_named_accounts ON catalog.decisions FOR SELECT USING {NAMED};
"""

SCHEMA = """
ALTER TABLE stragglers
    DROP CONSTRAINT stragglers_decision_check,
    ADD CONSTRAINT stragglers_decision_check CHECK (decision IN ('correct', 'approve', 'hold', 'drop', 'reject')),
    ADD COLUMN corrects_lsns bigint[],
    ADD COLUMN day date,
    ADD COLUMN dimensions jsonb,
    ADD COLUMN hold_until timestamptz,
    ADD COLUMN hold_expires text CHECK (hold_expires IN ('correct', 'drop')),
    ADD COLUMN decided_at timestamptz,
    ADD COLUMN decided_by text,
    ADD COLUMN reason text,
    ADD COLUMN decided_lsn bigint,
    ADD COLUMN settled bigint;
CREATE SEQUENCE settled_stragglers;
CREATE INDEX stragglers_held ON stragglers (hold_until, usage_lsn) WHERE decision = 'hold';
CREATE INDEX stragglers_settled ON stragglers (settled) WHERE settled > 0;
COMMENT ON TABLE stragglers IS
    'Received after end + grace: signed quantity and amount that changed the window (correct, approve), or did not '
    '(hold: not yet; drop, reject). Of another cause than stream: what takes back or replaces such a row, and has its '
    'decision.';
COMMENT ON COLUMN stragglers.hold_until IS
    'Deadline of one that waits, or waited: when the frontier reaches it without a decision, hold_expires is done. '
    'Null also where it waits, or waited, with what it corrects.';
COMMENT ON COLUMN stragglers.decided_at IS
    'Of one that waited: when the decision was received; its deadline, where nobody decided (decided_by is null).';
COMMENT ON COLUMN stragglers.decided_lsn IS 'The row of usage that says the decision.';
COMMENT ON COLUMN stragglers.settled IS
    'Null: it never waited. 0: it waits. Else which place its end of waiting has among all.';

ALTER TABLE corrections
    DROP CONSTRAINT corrections_decision_check,
    ADD CONSTRAINT corrections_decision_check CHECK (decision IN ('correct', 'approve'));
"""

# What waits is nobody's, and an earlier release knows no other word for that.
_EARLIER = """
DROP TABLE catalog.decisions;
UPDATE corrections SET decision = 'correct' WHERE decision = 'approve';
ALTER TABLE corrections
    DROP CONSTRAINT corrections_decision_check,
    ADD CONSTRAINT corrections_decision_check CHECK (decision <> 'drop');
UPDATE stragglers SET decision = CASE WHEN decision = 'approve' THEN 'correct' ELSE 'drop' END
WHERE decision IN ('approve', 'hold', 'reject');
ALTER TABLE stragglers
    DROP CONSTRAINT stragglers_decision_check,
    ADD CONSTRAINT stragglers_decision_check CHECK (decision IN ('correct', 'drop')),
    DROP COLUMN corrects_lsns, DROP COLUMN day, DROP COLUMN dimensions, DROP COLUMN hold_until,
    DROP COLUMN hold_expires, DROP COLUMN decided_at, DROP COLUMN decided_by, DROP COLUMN reason,
    DROP COLUMN decided_lsn, DROP COLUMN settled;
DROP SEQUENCE settled_stragglers;
"""


def upgrade() -> None:
    """Add what is kept of waiting, and the table of decisions."""
    op.execute(DECISIONS)
    op.execute(SCHEMA)


def downgrade() -> None:
    """Remove it again."""
    op.execute(_EARLIER)
