"""Endpoints may be addresses of mail, which have no secret: the server's password is the sender's own."""

from alembic import op

revision = "0112"
down_revision = "0111"

KINDS = """
ALTER TABLE webhook_endpoints DROP CONSTRAINT webhook_endpoints_kind_check,
    ADD CONSTRAINT webhook_endpoints_kind_check CHECK (kind IN ({kinds}))
"""


def upgrade() -> None:
    """Allow them."""
    op.execute(KINDS.format(kinds="'webhook', 'slack', 'mail'"))


def downgrade() -> None:
    """Refused before while there is one (`downgrade.USES`)."""
    op.execute(KINDS.format(kinds="'webhook', 'slack'"))
