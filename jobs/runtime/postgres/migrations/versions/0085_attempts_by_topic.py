"""What a driver was about to read, by topic: of several topics each is tried again from its own positions."""

from alembic import op

revision = "0085"
down_revision = "0084"

SCHEMA = """
ALTER TABLE attempts ADD COLUMN topic text;
UPDATE attempts a SET topic = coalesce((SELECT config ->> 'topic' FROM jobs j WHERE j.job = a.job), 'events');
ALTER TABLE attempts ALTER COLUMN topic SET NOT NULL, DROP CONSTRAINT attempts_pkey, ADD PRIMARY KEY (job, topic);
"""
BEFORE = """
DELETE FROM attempts a
WHERE topic <> coalesce((SELECT config ->> 'topic' FROM jobs j WHERE j.job = a.job), 'events');
ALTER TABLE attempts DROP CONSTRAINT attempts_pkey, DROP COLUMN topic, ADD PRIMARY KEY (job);
"""


def upgrade() -> None:
    """Give each attempt its topic: that which the job was configured with last."""
    op.execute(SCHEMA)


def downgrade() -> None:
    """Keep the attempts of the one topic that an older release reads."""
    op.execute(BEFORE)
