"""What writes made that their callers have named, so that one that is sent again is made once."""

import sqlalchemy as sa
from alembic import op

revision = "7"
down_revision = "6"

Text = sa.Text(collation="C")


def upgrade() -> None:
    """Add a table; nothing that was there changes."""
    op.create_table(
        "requests",
        sa.Column("id", sa.BigInteger, primary_key=True),
        sa.Column("request_id", Text, nullable=False, unique=True),
        sa.Column("time", sa.Float, nullable=False),
        sa.Column("answer", sa.LargeBinary, nullable=False),
    )
    op.create_index("ix_requests_time", "requests", ["time"])
