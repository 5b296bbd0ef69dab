"""${message}"""

from alembic import op

revision = "${up_revision}"
down_revision = ${repr(down_revision)}
# Whether the version before can run on this schema (docs/decisions/0179): all that it writes and reads is as it was.
is_expansion = False


def upgrade() -> None:
    op.execute("")
