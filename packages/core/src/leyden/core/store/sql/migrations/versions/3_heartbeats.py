"""An attempt's heartbeat is the time of its last span, so that storing one writes nothing else.

The sixth version makes the functions that store spans. SQLite files are changed by `store.sql.store`.
"""

import sqlalchemy as sa
from alembic import op

revision = "3"
down_revision = "2"


def upgrade() -> None:
    """Give spans a heartbeat of their own."""
    op.add_column("spans", sa.Column("heartbeat_time", sa.Float))
