"""Endpoints have a kind: a webhook, or one of Slack, whose URL is its secret and stands with the secrets alone."""

from alembic import op

revision = "0111"
down_revision = "0110"


def upgrade() -> None:
    """Those that there are are webhooks."""
    op.execute(
        "ALTER TABLE webhook_endpoints ADD COLUMN kind text NOT NULL DEFAULT 'webhook'"
        " CHECK (kind IN ('webhook', 'slack'));"
        "ALTER TABLE webhook_secrets DROP CONSTRAINT webhook_secrets_secret_check,"
        " ADD CONSTRAINT webhook_secrets_secret_check CHECK (secret ~ '^(wh(sec|sk)_|https?://)')"
    )


def downgrade() -> None:
    """Forget the kind; refused before while there is an endpoint of another (`downgrade.USES`)."""
    op.execute(
        "ALTER TABLE webhook_endpoints DROP COLUMN kind;"
        "ALTER TABLE webhook_secrets DROP CONSTRAINT webhook_secrets_secret_check,"
        " ADD CONSTRAINT webhook_secrets_secret_check CHECK (secret ~ '^wh(sec|sk)_')"
    )
