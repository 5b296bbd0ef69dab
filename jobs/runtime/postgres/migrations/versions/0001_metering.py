"""Positions and epochs, usage windows, stragglers, sessions, and the catalog people edit."""

from alembic import op

revision = "0001"
down_revision = None

SCHEMA = """
CREATE TABLE jobs (
    job              text PRIMARY KEY,
    epoch            bigint NOT NULL CHECK (epoch > 0),
    owner_pid        integer NOT NULL,
    owner_started_at timestamptz NOT NULL,
    started_at       timestamptz NOT NULL,
    config           jsonb NOT NULL,
    state            text NOT NULL,
    progress         jsonb NOT NULL DEFAULT '{}',
    updated_at       timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE jobs IS 'One row per application: the epoch that may commit, its owner, and its last progress.';

CREATE TABLE positions (
    job           text NOT NULL,
    input         text NOT NULL,
    next_position bigint NOT NULL CHECK (next_position > 0),
    frontier      timestamptz,
    updated_at    timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (job, input)
);
COMMENT ON TABLE positions IS 'How far a job has folded its input (exclusive), written with the data.';

CREATE TABLE batches (
    job            text NOT NULL,
    first_position bigint NOT NULL,
    next_position  bigint NOT NULL,
    epoch          bigint NOT NULL,
    records        bigint NOT NULL,
    duration_ms    bigint NOT NULL,
    committed_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (job, first_position),
    CHECK (next_position > first_position)
);

CREATE TABLE usage_windows (
    account           text NOT NULL,
    model             text,
    meter             text NOT NULL,
    currency          text,
    price_version     bigint,
    window_start      timestamptz NOT NULL,
    window_end        timestamptz NOT NULL,
    quantity          bigint NOT NULL,
    amount            numeric(38, 12) CHECK (amount <> 'NaN'),
    late_quantity     bigint NOT NULL DEFAULT 0,
    late_rows         bigint NOT NULL DEFAULT 0,
    unmetered_rows    bigint NOT NULL DEFAULT 0,
    corrected         boolean NOT NULL DEFAULT false,
    updated_at        timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT usage_windows_key
        UNIQUE NULLS NOT DISTINCT (window_start, account, model, meter, currency, price_version)
);
CREATE INDEX usage_windows_by_account ON usage_windows (account, window_start);
COMMENT ON TABLE usage_windows IS
    'Signed usage per account, model, meter, currency, price version and minute. price_version null: unpriced.';

CREATE TABLE stragglers (
    usage_lsn     bigint NOT NULL,
    meter         text NOT NULL,
    account       text NOT NULL,
    model         text,
    request_id    text NOT NULL,
    window_start  timestamptz NOT NULL,
    event_time    timestamptz NOT NULL,
    received_at   timestamptz NOT NULL,
    late_seconds  numeric(20, 6) NOT NULL CHECK (late_seconds >= 0),
    decision      text NOT NULL CHECK (decision IN ('correct', 'drop')),
    quantity      bigint NOT NULL,
    amount        numeric(38, 12) CHECK (amount <> 'NaN'),
    currency      text,
    price_version bigint,
    recorded_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (usage_lsn, meter)
);
CREATE INDEX stragglers_by_window ON stragglers (window_start, account);
COMMENT ON TABLE stragglers IS
    'Received after end + grace: signed quantity and amount that changed the window (correct) or would have (drop).';

CREATE TABLE sessions (
    session_id    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    account       text NOT NULL,
    user_id       text NOT NULL,
    session_start timestamptz NOT NULL,
    session_end   timestamptz NOT NULL,
    events        bigint NOT NULL CHECK (events > 0),
    version       integer NOT NULL CHECK (version > 0),
    retracted_at  timestamptz,
    updated_at    timestamptz NOT NULL DEFAULT now(),
    CHECK (session_start <= session_end)
);
CREATE UNIQUE INDEX sessions_live ON sessions (account, user_id, session_start) WHERE retracted_at IS NULL;
COMMENT ON COLUMN sessions.session_end IS
    'Time of the last event; the session is over when the frontier passes it by the gap.';
COMMENT ON COLUMN sessions.version IS 'One more each time a session that was already closed had to change.';
COMMENT ON COLUMN sessions.retracted_at IS 'When a later version took the place of this, once closed, session.';

CREATE SCHEMA catalog;
CREATE TABLE catalog.plans (
    plan text PRIMARY KEY CHECK (plan <> ''),
    name text NOT NULL
);
CREATE TABLE catalog.accounts (
    account        text PRIMARY KEY CHECK (account <> ''),
    name           text NOT NULL,
    plan           text NOT NULL REFERENCES catalog.plans,
    currency       text NOT NULL CHECK (currency ~ '^[A-Z]{3}$'),
    timezone       text NOT NULL DEFAULT 'UTC',
    effective_from timestamptz
);
CREATE TABLE catalog.prices (
    plan           text NOT NULL REFERENCES catalog.plans,
    model          text NOT NULL CHECK (model <> ''),
    meter          text NOT NULL CHECK (meter IN ('requests', 'input_tokens', 'output_tokens', 'cached_tokens')),
    currency       text NOT NULL CHECK (currency ~ '^[A-Z]{3}$'),
    effective_from timestamptz NOT NULL,
    unit_price     numeric(20, 12) NOT NULL CHECK (unit_price <> 'NaN' AND unit_price >= 0),
    PRIMARY KEY (plan, model, meter, currency, effective_from)
);
"""


def upgrade() -> None:
    """Create everything this version needs."""
    op.execute(SCHEMA)


def downgrade() -> None:
    """Remove it again."""
    op.execute("DROP SCHEMA catalog CASCADE; DROP TABLE sessions, stragglers, usage_windows, batches, positions, jobs")
