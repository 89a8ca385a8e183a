"""The first tables, without the function for storing a span, which the eighth version dropped.

SQLite files have had the tables from the start, and are made without migrations.
"""

import sqlalchemy as sa
from alembic import op

revision = "1"
down_revision = None

Text = sa.Text(collation="C")


def upgrade() -> None:
    """Make the tables of a PostgreSQL store."""
    op.create_table(
        "rollouts",
        sa.Column("id", sa.BigInteger, primary_key=True),
        sa.Column("rollout_id", Text, nullable=False, unique=True),
        sa.Column("input", sa.LargeBinary, nullable=False),
        sa.Column("start_time", sa.Float, nullable=False),
        sa.Column("end_time", sa.Float),
        sa.Column("mode", Text),
        sa.Column("resources_id", Text),
        sa.Column("resources_version", sa.Integer),
        sa.Column("status", Text, nullable=False, index=True),
        sa.Column("config", sa.LargeBinary, nullable=False),
        sa.Column("metadata", sa.LargeBinary, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("span_counter", sa.BigInteger, nullable=False),
        sa.Column("deadline", sa.Float),
        postgresql_with={"fillfactor": 80},
    )
    op.create_index("rollouts_by_deadline", "rollouts", ["deadline"], postgresql_where=sa.text("deadline IS NOT NULL"))
    op.create_table(
        "queue",
        sa.Column("position", sa.BigInteger, primary_key=True),
        sa.Column("rollout_id", Text, nullable=False, unique=True),
    )
    op.create_table(
        "attempts",
        sa.Column("id", sa.BigInteger, primary_key=True),
        sa.Column("rollout_id", Text, nullable=False),
        sa.Column("attempt_id", Text, nullable=False),
        sa.Column("sequence_id", sa.Integer, nullable=False),
        sa.Column("start_time", sa.Float, nullable=False),
        sa.Column("end_time", sa.Float),
        sa.Column("status", Text, nullable=False),
        sa.Column("worker_id", Text),
        sa.Column("last_heartbeat_time", sa.Float),
        sa.Column("metadata", sa.LargeBinary, nullable=False),
        sa.UniqueConstraint("rollout_id", "attempt_id"),
        sa.UniqueConstraint("rollout_id", "sequence_id"),
        # Room for the heartbeats, which then need no new entry in any index.
        postgresql_with={"fillfactor": 80},
    )
    op.create_index(
        "open_attempts_of_worker",
        "attempts",
        ["worker_id", "id"],
        postgresql_where=sa.text("status IN ('preparing', 'running')"),
    )
    _make_spans()
    op.create_table(
        "resources",
        sa.Column("id", sa.BigInteger, primary_key=True),
        sa.Column("resources_id", Text, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("current", sa.Boolean, nullable=False),
        sa.Column("create_time", sa.Float, nullable=False),
        sa.Column("update_time", sa.Float, nullable=False),
        sa.Column("resources", sa.LargeBinary, nullable=False),
        sa.UniqueConstraint("resources_id", "version"),
    )
    op.create_table(
        "workers",
        sa.Column("id", sa.BigInteger, primary_key=True),
        sa.Column("worker_id", Text, nullable=False, unique=True),
        sa.Column("status", Text, nullable=False),
        sa.Column("heartbeat_stats", sa.LargeBinary, nullable=False),
        sa.Column("last_heartbeat_time", sa.Float),
        sa.Column("last_dequeue_time", sa.Float),
        sa.Column("last_busy_time", sa.Float),
        sa.Column("last_idle_time", sa.Float),
        sa.Column("current_rollout_id", Text),
        sa.Column("current_attempt_id", Text),
    )


def _make_spans() -> None:
    op.create_table(
        "spans",
        sa.Column("id", sa.BigInteger, primary_key=True),
        sa.Column("rollout_id", Text, nullable=False),
        sa.Column("attempt_id", Text, nullable=False),
        sa.Column("sequence_id", sa.BigInteger, nullable=False),
        sa.Column("trace_id", Text, nullable=False),
        sa.Column("span_id", Text, nullable=False),
        sa.Column("parent_id", Text),
        sa.Column("name", Text, nullable=False),
        sa.Column("start_time", sa.Float, nullable=False),
        sa.Column("end_time", sa.Float),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.UniqueConstraint("rollout_id", "span_id", "attempt_id"),
    )
    op.create_index("spans_in_order", "spans", ["rollout_id", "sequence_id"])
    # PostgreSQL's own compression costs four times what storing a packed span does, and saves no more than lz4.
    kinds = (
        op.get_bind()
        .exec_driver_sql("SELECT enumvals FROM pg_settings WHERE name = 'default_toast_compression'")
        .scalar()
    )
    if kinds is not None and "lz4" in kinds:
        op.execute("ALTER TABLE spans ALTER body SET COMPRESSION lz4")
    else:
        op.execute("ALTER TABLE spans ALTER body SET STORAGE EXTERNAL")
