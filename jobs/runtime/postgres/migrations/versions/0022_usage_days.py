"""Usage by the account's calendar day and by dimensions: a month is the sum of its days, not of 43,200 minutes.

The days of what was billed before are made from its minutes: about 4 s per million windows, and who reads or writes
them waits. Earlier releases kept no dimensions.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"

# The rule of migration 0003: who names no account sees none.
NAMED = """(
    (SELECT current_setting('weir.accounts', true) = '*')
    OR account = ANY (ARRAY(
        SELECT jsonb_array_elements_text(nullif(nullif(current_setting('weir.accounts', true), ''), '*')::jsonb)
    ))
)"""

SCHEMA = f"""
CREATE TABLE usage_days (
    account       text NOT NULL,
    day           date NOT NULL,
    model         text,
    meter         text NOT NULL,
    currency      text,
    price_version bigint,
    dimensions    jsonb,
    dimensions_key bytea GENERATED ALWAYS AS (sha256(jsonb_send(dimensions))) STORED,
    is_other      boolean NOT NULL DEFAULT false,
    quantity      numeric NOT NULL CHECK (quantity <> 'NaN'),
    unit_price    numeric(20, 12) CHECK (unit_price <> 'NaN' AND unit_price >= 0),
    usage_rows    bigint NOT NULL DEFAULT 0,
    first_window  timestamptz NOT NULL,
    last_window_end timestamptz NOT NULL,
    corrected     boolean NOT NULL DEFAULT false,
    amount        numeric GENERATED ALWAYS AS (quantity * unit_price) STORED,
    updated_at    timestamptz NOT NULL DEFAULT now(),
    CHECK (NOT is_other OR dimensions IS NULL),
    CONSTRAINT usage_days_key
        UNIQUE NULLS NOT DISTINCT (account, day, model, meter, currency, price_version, dimensions_key, is_other)
);
CREATE INDEX usage_days_by_day ON usage_days (day);
COMMENT ON TABLE usage_days IS
    'The sums of usage_windows by the account''s calendar day and by dimensions, written in the same transaction.';
COMMENT ON COLUMN usage_days.dimensions IS
    'What the outcome had of the dimensions that were configured; null: nothing, or is_other.';
COMMENT ON COLUMN usage_days.dimensions_key IS
    'Four texts are more than an index takes: they are known by a digest.';
COMMENT ON COLUMN usage_days.is_other IS
    'Usage of combinations of dimensions beyond the first 10,000 of an account''s day.';
COMMENT ON COLUMN usage_days.first_window IS
    'With last_window_end: between which instants its minutes lie, whatever zone named the day.';

CREATE TABLE usage_day_dimensions (
    account    text NOT NULL,
    day        date NOT NULL,
    dimensions jsonb NOT NULL,
    dimensions_key bytea GENERATED ALWAYS AS (sha256(jsonb_send(dimensions))) STORED,
    first_lsn  bigint NOT NULL,
    PRIMARY KEY (account, day, dimensions_key)
);
COMMENT ON TABLE usage_day_dimensions IS
    'The combinations of dimensions that have rows of their own: of an account''s day the first 10,000, by usage lsn.';

-- Minutes do not say of which day they are, so days that overlap cannot be told apart by them.
CREATE FUNCTION usage_spans(first date, last date)
RETURNS TABLE (account text, day date, starts timestamptz, ends timestamptz)
LANGUAGE sql STABLE AS $$
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
    FROM numbered WINDOW same AS (PARTITION BY account, span)
$$;
COMMENT ON FUNCTION usage_spans IS
    'Days from first to last (null: all), and the span of time that each shares with those it overlaps: all minutes of '
    'an account in a span are of its days, and none of its days has another.';

ALTER TABLE usage_days ENABLE ROW LEVEL SECURITY;
CREATE POLICY reads_named_accounts ON usage_days FOR SELECT USING {NAMED};
ALTER TABLE usage_day_dimensions ENABLE ROW LEVEL SECURITY;
CREATE POLICY reads_named_accounts ON usage_day_dimensions FOR SELECT USING {NAMED};
"""

# An older billing that still runs would go on with minutes that have no day. What it has under way ends first.
FENCE = "UPDATE jobs SET epoch = epoch + 1 WHERE job = 'billing'"
ZONES = """
SELECT account, array_agg(nullif(holds_from, '-infinity') ORDER BY holds_from), array_agg(timezone ORDER BY holds_from)
FROM catalog.account_zones GROUP BY account
"""
ZONE_NAMES = "SELECT name FROM pg_timezone_names"
SPAN = "SELECT min(window_start), max(window_end) FROM usage_windows"
STRETCHES = """
CREATE TEMP TABLE stretches (account text, starts timestamptz, ends timestamptz, zone text, first_day date)
ON COMMIT DROP
"""
# What a month begins with before its own first midnight is of its first day.
FILL = """
INSERT INTO usage_days (
    account, day, model, meter, currency, price_version, quantity, unit_price, first_window, last_window_end, corrected
)
SELECT usage_windows.account, greatest((window_start AT TIME ZONE coalesce(zone, 'UTC'))::date, first_day),
       model, meter, currency, price_version,
       trim_scale(sum(quantity)), max(unit_price), min(window_start), max(window_end), bool_or(corrected)
FROM usage_windows LEFT JOIN stretches
  ON stretches.account = usage_windows.account AND window_start >= starts AND window_start < ends
GROUP BY 1, 2, 3, 4, 5, 6
"""


def upgrade() -> None:
    """Make both tables, and the days of what is there."""
    op.execute(FENCE)
    op.execute(SCHEMA)
    connection = op.get_bind()
    first, last = connection.execute(sa.text(SPAN)).one()
    if first is None:
        return
    connection.execute(sa.text(STRETCHES))
    names = set(connection.scalars(sa.text(ZONE_NAMES)))
    rows = [
        {"account": account, "starts": starts, "ends": ends, "zone": zone if zone in names else "UTC", "first": day}
        for account, held_from, zones in connection.execute(sa.text(ZONES)).all()
        for starts, ends, zone, day in stretches(list(zip(held_from, zones, strict=True)), first, last)
    ]
    if rows:
        connection.execute(sa.text("INSERT INTO stretches VALUES (:account, :starts, :ends, :zone, :first)"), rows)
    connection.execute(sa.text(FILL))


def downgrade() -> None:
    """Remove them again."""
    op.execute("DROP FUNCTION usage_spans; DROP TABLE usage_day_dimensions, usage_days")


def stretches(
    changes: list[tuple[datetime | None, str]], first: datetime, last: datetime
) -> list[tuple[datetime, datetime, str, date | None]]:
    """(start, end, zone, first day) of the months from `first` to `last`: each has the zone that held at its start."""
    zone = changes[0][1]
    if len(changes) == 1:
        return [(first, last, zone, None)]
    begins = first.astimezone(UTC).date().replace(day=1) - timedelta(days=1)
    found: list[tuple[datetime, datetime, str, date | None]] = []
    month = min([begins, *(at.date() for at, _ in changes[1:] if at is not None)]).replace(day=1)
    start = _midnight(month, zone)
    while start < last:
        zone = next((name for at, name in reversed(changes) if at is None or at <= start), changes[0][1])
        following = (month + timedelta(days=31)).replace(day=1)
        end = _midnight(following, zone)
        found.append((start, end, zone, month))
        month, start = following, end
    return found


def _midnight(day: date, zone: str) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=_zone(zone)).astimezone(UTC)


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return ZoneInfo("UTC")
