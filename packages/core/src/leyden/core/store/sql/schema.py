"""Tables and indexes of a SQL store. Column names are the field names of `store.common.rows`.

Each frequent access has an index: each queue by position, rollouts by queue, by status and by start, the latest
attempt, an attempt's spans in order, duplicates of spans, deadlines, and a worker's open attempts.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    UniqueConstraint,
)
from sqlalchemy import Text as AnyText
from sqlalchemy import literal_column as sql

VERSION = 10
"""Version of the schema, stored with the data, and the newest of `migrations`; newer stores are refused."""
KEEP_HEARTBEATS = """
UPDATE attempts SET last_heartbeat_time = {last}
WHERE status = 'running' AND last_heartbeat_time < {last}
""".format(
    last="(SELECT heartbeat_time FROM spans WHERE spans.rollout_id = attempts.rollout_id"
    " AND spans.attempt_id = attempts.attempt_id ORDER BY sequence_id DESC LIMIT 1)"
)
"""For stores of versions 3 to 7: there, the time of a running attempt's last span may be its last heartbeat."""

Text = AnyText().with_variant(AnyText(collation="C"), "postgresql")
"""Text that is sorted by its bytes, whatever the locale of a PostgreSQL server."""
Big = BigInteger().with_variant(Integer, "sqlite")
"""64-bit integer. SQLite's integers all have 64 bits, but only the type INTEGER makes an automatic key."""

metadata = MetaData()

rollouts = Table(
    "rollouts",
    metadata,
    Column("id", Big, primary_key=True),
    Column("rollout_id", Text, nullable=False, unique=True),
    Column("input", LargeBinary, nullable=False),
    Column("start_time", Float, nullable=False),
    Column("end_time", Float),
    Column("mode", Text),
    Column("resources_id", Text),
    Column("resources_version", Integer),
    Column("status", Text, nullable=False, index=True),
    Column("config", LargeBinary, nullable=False),
    Column("metadata", LargeBinary, nullable=False),
    Column("attempts", Integer, nullable=False),
    # The highest span number reserved before its span arrived. Numbers of stored spans are in their index.
    Column("span_counter", Big, nullable=False, default=0),
    Column("deadline", Float),
    Column("queue", Text, nullable=False, server_default=""),
)
ROLLOUT_INDEXES = (
    Index("rollouts_of_queue", rollouts.c.queue, rollouts.c.id),
    Index("rollouts_by_start", rollouts.c.start_time),
    Index("rollouts_of_queue_by_start", rollouts.c.queue, rollouts.c.start_time),
)
"""Those of columns that the first version did not have, or had without an index."""
Index(
    "rollouts_by_deadline",
    rollouts.c.deadline,
    sqlite_where=rollouts.c.deadline.is_not(None),
    postgresql_where=rollouts.c.deadline.is_not(None),
)

queue = Table(
    "queue",
    metadata,
    Column("queue", Text, primary_key=True, server_default=""),
    # PostgreSQL assigns positions from a sequence; in SQLite, a new position follows the last one of the queue.
    Column("position", Big, primary_key=True, autoincrement=False),
    Column("rollout_id", Text, nullable=False, unique=True),
    sqlite_with_rowid=False,
)
"""Rollouts that wait, by queue and position: each queue is read in order, without the others."""

attempts = Table(
    "attempts",
    metadata,
    Column("id", Big, primary_key=True),
    Column("rollout_id", Text, nullable=False),
    Column("attempt_id", Text, nullable=False),
    Column("sequence_id", Integer, nullable=False),
    Column("start_time", Float, nullable=False),
    Column("end_time", Float),
    Column("status", Text, nullable=False),
    Column("worker_id", Text),
    Column("last_heartbeat_time", Float),
    Column("metadata", LargeBinary, nullable=False),
    UniqueConstraint("rollout_id", "attempt_id"),
    UniqueConstraint("rollout_id", "sequence_id"),
)
Index("attempts_of_worker", attempts.c.worker_id, attempts.c.status).ddl_if(dialect="sqlite")
OPEN = sql("attempts.status IN ('preparing', 'running')", Boolean)
"""Whether an attempt is open; literal SQL, so that the index of open attempts is used."""
Index("open_attempts_of_worker", attempts.c.worker_id, attempts.c.id, postgresql_where=OPEN).ddl_if(
    dialect="postgresql"
)

spans = Table(
    "spans",
    metadata,
    Column("id", Big, primary_key=True),
    Column("rollout_id", Text, nullable=False),
    Column("attempt_id", Text, nullable=False),
    Column("sequence_id", Big, nullable=False),
    Column("trace_id", Text, nullable=False),
    Column("span_id", Text, nullable=False),
    Column("parent_id", Text),
    Column("name", Text, nullable=False),
    Column("start_time", Float, nullable=False),
    Column("end_time", Float),
    Column("body", LargeBinary, nullable=False),
    UniqueConstraint("rollout_id", "span_id", "attempt_id"),
)
Index("spans_in_order", spans.c.rollout_id, spans.c.sequence_id)

resources = Table(
    "resources",
    metadata,
    Column("id", Big, primary_key=True),
    Column("resources_id", Text, nullable=False),
    Column("version", Integer, nullable=False),
    Column("current", Boolean, nullable=False),
    Column("create_time", Float, nullable=False),
    Column("update_time", Float, nullable=False),
    Column("resources", LargeBinary, nullable=False),
    UniqueConstraint("resources_id", "version"),
)

workers = Table(
    "workers",
    metadata,
    Column("id", Big, primary_key=True),
    Column("worker_id", Text, nullable=False, unique=True),
    Column("status", Text, nullable=False),
    Column("heartbeat_stats", LargeBinary, nullable=False),
    Column("last_heartbeat_time", Float),
    Column("last_dequeue_time", Float),
    Column("last_busy_time", Float),
    Column("last_idle_time", Float),
    Column("current_rollout_id", Text),
    Column("current_attempt_id", Text),
)

requests = Table(
    "requests",
    metadata,
    Column("id", Big, primary_key=True),
    Column("request_id", Text, nullable=False, unique=True),
    Column("time", Float, nullable=False, index=True),
    Column("answer", LargeBinary, nullable=False),
)

runs = Table(
    "runs",
    metadata,
    Column("id", Big, primary_key=True),
    Column("run_id", Text, nullable=False, unique=True),
    Column("name", Text, nullable=False),
    Column("experiment", Text),
    Column("status", Text, nullable=False),
    Column("config", LargeBinary, nullable=False),
    Column("metadata", LargeBinary, nullable=False),
    Column("start_time", Float, nullable=False),
    Column("end_time", Float),
    Column("update_time", Float, nullable=False),
)

step_metrics = Table(
    "step_metrics",
    metadata,
    Column("id", Big, primary_key=True),
    Column("run_id", Text, nullable=False),
    Column("step", Big, nullable=False),
    Column("time", Float, nullable=False),
    Column("body", LargeBinary, nullable=False),
    UniqueConstraint("run_id", "step"),
)

policy_versions = Table(
    "policy_versions",
    metadata,
    Column("id", Big, primary_key=True),
    Column("run_id", Text, nullable=False),
    Column("policy", Text, nullable=False),
    Column("version", Big, nullable=False),
    Column("parent", Big),
    Column("path", Text),
    Column("note", Text),
    Column("metrics", LargeBinary, nullable=False),
    Column("metadata", LargeBinary, nullable=False),
    Column("create_time", Float, nullable=False),
    Column("update_time", Float, nullable=False),
    UniqueConstraint("run_id", "policy", "version"),
)
