"""An attempt's last heartbeat is a column of the attempt alone; before, its last span's time could be later.

Drops the functions with which earlier versions stored spans. SQLite files are changed by `store.sql.store`.
"""

from alembic import op

from leyden.core.store.sql import schema

revision = "8"
down_revision = "7"


def upgrade() -> None:
    """Keep the heartbeats of running attempts, then drop the column and the functions."""
    op.execute(schema.KEEP_HEARTBEATS)
    op.drop_column("spans", "heartbeat_time")
    op.execute("DROP FUNCTION IF EXISTS leyden_add_span")
    op.execute("DROP FUNCTION IF EXISTS leyden_add_spans")
