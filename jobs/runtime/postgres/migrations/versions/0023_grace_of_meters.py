"""Meters may have a grace of their own: until when each is closed, and what it was before under other rules."""

from alembic import op

revision = "0023"
down_revision = "0022"

SCHEMA = """
ALTER TABLE rules ADD COLUMN meter_closed_before jsonb NOT NULL DEFAULT '{}';
COMMENT ON COLUMN rules.meter_closed_before IS
    'closed_before of the meters for which it was another instant than for all, by name.';
"""

_KEPT = """
LEFT JOIN LATERAL (
    SELECT rules.rules, rules.closed_before, rules.meter_closed_before
    FROM rules WHERE rules.job = positions.job ORDER BY first_position DESC LIMIT 1
) AS kept ON true
WHERE positions.job = 'billing' AND positions.input = 'usage'
"""

# A database that kept no rules has the configuration alone, until its next batch; until then it had one grace for all.
_CLOSED_METERS = f"""
CREATE VIEW closed_meters AS
SELECT meters.meter,
       greatest(
           positions.frontier - make_interval(secs => coalesce(
               kept.rules -> 'meter_grace_seconds' ->> meters.meter,
               kept.rules ->> 'grace_seconds',
               jobs.config ->> 'grace_seconds'
           )::float8),
           coalesce((kept.meter_closed_before ->> meters.meter)::timestamptz, kept.closed_before)
       ) AS closed_until
FROM positions
CROSS JOIN meters
LEFT JOIN jobs USING (job)
{_KEPT};
COMMENT ON VIEW closed_meters IS
    'Windows of a meter that end at its closed_until or before are closed; all meters that were ever declared.';
"""

_CLOSED_USAGE = """
CREATE OR REPLACE VIEW closed_usage AS
SELECT positions.frontier, (SELECT min(closed_until) FROM closed_meters) AS closed_until
FROM positions
WHERE positions.job = 'billing' AND positions.input = 'usage';
COMMENT ON VIEW closed_usage IS
    'How far usage is billed (frontier); windows that end at closed_until or before are closed, whatever the meter.';
"""

# As 0016 left it.
_EARLIER = """
CREATE OR REPLACE VIEW closed_usage AS
SELECT positions.frontier,
       greatest(positions.frontier - coalesce(kept.grace, configured.grace), kept.closed_before) AS closed_until
FROM positions
LEFT JOIN jobs USING (job)
CROSS JOIN LATERAL (SELECT make_interval(secs => (jobs.config ->> 'grace_seconds')::float8) AS grace) AS configured
LEFT JOIN LATERAL (
    SELECT make_interval(secs => (rules.rules ->> 'grace_seconds')::float8) AS grace, rules.closed_before
    FROM rules WHERE rules.job = positions.job ORDER BY first_position DESC LIMIT 1
) AS kept ON true
WHERE positions.job = 'billing' AND positions.input = 'usage';
COMMENT ON VIEW closed_usage IS
    'How far usage is billed (frontier); windows that end at closed_until or before are closed.';
"""


def upgrade() -> None:
    """Add the column and the view, and make what is closed for all the least of them."""
    op.execute(SCHEMA + _CLOSED_METERS + _CLOSED_USAGE)


def downgrade() -> None:
    """Remove them again."""
    op.execute(_EARLIER + "DROP VIEW closed_meters; ALTER TABLE rules DROP COLUMN meter_closed_before")
