"""An attempt's last heartbeat is a column of the attempt alone; before, its last span's time could be later.

Replaces the functions with which earlier versions stored spans. SQLite files are changed by `store.sql.store`.
"""

from alembic import op

from leyden.core.store.sql import schema

revision = "8"
down_revision = "7"

# A plan may be made while the tables are small, and used when they are large. Therefore each row is selected by its own
# key, other conditions have a form that no index supports, and the earliest deadline is selected as the first in order.
ADD_SPANS = """
CREATE FUNCTION leyden_add_spans(
    at float8, of_rollouts text[], of_attempts text[], attempts_at int[], ranks int[], traces text[], span_ids text[],
    parents text[], names text[], starts float8[], ends float8[], bodies bytea[]
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    begins boolean;
    highest bigint[];
BEGIN
    IF (SELECT deadline FROM rollouts WHERE deadline IS NOT NULL ORDER BY deadline LIMIT 1) <= at THEN
        RETURN NULL;
    END IF;
    SELECT bool_or(status = 'preparing') INTO begins FROM (
        SELECT status FROM rollouts WHERE rollout_id = ANY (of_rollouts) ORDER BY rollout_id FOR NO KEY UPDATE
    ) AS locked;
    SELECT array_agg((
        SELECT greatest(span_counter, (SELECT max(sequence_id) FROM spans WHERE rollout_id = of_rollout))
        FROM rollouts JOIN attempts USING (rollout_id)
        WHERE rollout_id = of_rollout AND attempt_id = of_attempt
            AND attempts.status IS NOT DISTINCT FROM rollouts.status
            AND CASE rollouts.status
                WHEN 'running' THEN true
                WHEN 'preparing' THEN attempts.sequence_id = rollouts.attempts
            END
    ) ORDER BY place) INTO highest
    FROM unnest(of_rollouts, of_attempts) WITH ORDINALITY AS given (of_rollout, of_attempt, place);
    IF array_position(highest, NULL) IS NOT NULL THEN
        RETURN NULL;
    END IF;
    FOR place IN 1 .. cardinality(of_rollouts) LOOP
        UPDATE attempts SET status = 'running', last_heartbeat_time = greatest(last_heartbeat_time, at)
            WHERE rollout_id = of_rollouts[place] AND attempt_id = of_attempts[place];
    END LOOP;
    IF begins THEN
        UPDATE rollouts SET status = 'running' WHERE rollout_id = ANY (of_rollouts) AND status <> 'running';
    END IF;
    INSERT INTO spans (
        rollout_id, attempt_id, sequence_id, trace_id, span_id, parent_id, name, start_time, end_time, body
    )
    SELECT of_rollouts[which], of_attempts[which], highest[which] + rank, trace, span, parent, named, started, ended,
        rest
    FROM unnest(attempts_at, ranks, traces, span_ids, parents, names, starts, ends, bodies)
        AS given (which, rank, trace, span, parent, named, started, ended, rest);
    RETURN begins::int || highest;
END $$
"""
"""Stores spans in the usual case: new spans without numbers, of attempts that are running or begin, nothing overdue.

`attempts_at` has the position of each span's attempt in `of_attempts`, and `ranks` each span's rank among those of its
rollout, both counted from 1. Returns whether a rollout begins to run (1 or 0), then the highest number that each
attempt's rollout had before. Returns NULL, without a change, where any span is no usual case. Raises unique_violation
where a span is stored already. A rollout that begins keeps its deadline, which may be too early; the health check moves
it.
"""


def upgrade() -> None:
    """Keep the heartbeats of running attempts, drop the column, and create the function."""
    op.execute(schema.KEEP_HEARTBEATS)
    op.drop_column("spans", "heartbeat_time")
    op.execute("DROP FUNCTION IF EXISTS leyden_add_span")
    op.execute("DROP FUNCTION IF EXISTS leyden_add_spans")
    op.execute(ADD_SPANS)
