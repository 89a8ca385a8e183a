"""The newest rollouts of a store, and of a queue, are found by an index instead of by sorting all of them.

SQLite files are changed by `store.sql.store`.
"""

from alembic import op

revision = "10"
down_revision = "9"


def upgrade() -> None:
    """Add the indexes."""
    op.create_index("rollouts_by_start", "rollouts", ["start_time"])
    op.create_index("rollouts_of_queue_by_start", "rollouts", ["queue", "start_time"])
