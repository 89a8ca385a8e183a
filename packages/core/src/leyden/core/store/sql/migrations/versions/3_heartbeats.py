"""A span may have the time of its attempt's last heartbeat; the eighth version drops the column again.

SQLite files are changed by `store.sql.store`.
"""

import sqlalchemy as sa
from alembic import op

revision = "3"
down_revision = "2"


def upgrade() -> None:
    """Add the column."""
    op.add_column("spans", sa.Column("heartbeat_time", sa.Float))
