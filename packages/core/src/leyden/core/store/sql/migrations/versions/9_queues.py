"""A rollout waits in a queue with a name; all rollouts of earlier versions are in the usual one, whose name is empty.

SQLite files are changed by `store.sql.store`.
"""

import sqlalchemy as sa
from alembic import op

revision = "9"
down_revision = "8"

Text = sa.Text(collation="C")


def upgrade() -> None:
    """Add the columns and their indexes; each queue is read by an index of its own part."""
    for table in ("rollouts", "queue"):
        op.add_column(table, sa.Column("queue", Text, nullable=False, server_default=""))
    op.create_index("rollouts_of_queue", "rollouts", ["queue", "id"])
    # An index of the position alone would be scanned through the rollouts of all other queues.
    op.drop_constraint("queue_pkey", "queue")
    op.create_primary_key("queue_pkey", "queue", ["queue", "position"])
