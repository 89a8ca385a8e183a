"""Runs, what was measured at their steps, and the versions of their policies."""

import sqlalchemy as sa
from alembic import op

revision = "2"
down_revision = "1"

Text = sa.Text(collation="C")


def upgrade() -> None:
    """Add tables; nothing that was there changes."""
    op.create_table(
        "runs",
        sa.Column("id", sa.BigInteger, primary_key=True),
        sa.Column("run_id", Text, nullable=False, unique=True),
        sa.Column("name", Text, nullable=False),
        sa.Column("experiment", Text),
        sa.Column("status", Text, nullable=False),
        sa.Column("config", sa.LargeBinary, nullable=False),
        sa.Column("metadata", sa.LargeBinary, nullable=False),
        sa.Column("start_time", sa.Float, nullable=False),
        sa.Column("end_time", sa.Float),
        sa.Column("update_time", sa.Float, nullable=False),
    )
    op.create_table(
        "step_metrics",
        sa.Column("id", sa.BigInteger, primary_key=True),
        sa.Column("run_id", Text, nullable=False),
        sa.Column("step", sa.BigInteger, nullable=False),
        sa.Column("time", sa.Float, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.UniqueConstraint("run_id", "step"),
    )
    op.create_table(
        "policy_versions",
        sa.Column("id", sa.BigInteger, primary_key=True),
        sa.Column("run_id", Text, nullable=False),
        sa.Column("policy", Text, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("parent", sa.BigInteger),
        sa.Column("path", Text),
        sa.Column("note", Text),
        sa.Column("metrics", sa.LargeBinary, nullable=False),
        sa.Column("metadata", sa.LargeBinary, nullable=False),
        sa.Column("create_time", sa.Float, nullable=False),
        sa.Column("update_time", sa.Float, nullable=False),
        sa.UniqueConstraint("run_id", "policy", "version"),
    )
