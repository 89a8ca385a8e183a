"""The function that stores several spans begins their attempts by their keys, whatever else begins or began.

SQLite files are changed by `store.sql`.
"""

from alembic import op

revision = "5"
down_revision = "4"

ADD_SPANS = """
CREATE OR REPLACE FUNCTION leyden_add_spans(
    at float8, of_rollouts text[], of_attempts text[], attempts_at int[], ranks int[], traces text[], span_ids text[],
    parents text[], names text[], starts float8[], ends float8[], bodies bytea[]
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    begins boolean;
    highest bigint[];
BEGIN
    IF (SELECT min(deadline) FROM rollouts WHERE deadline IS NOT NULL) <= at THEN
        RETURN NULL;
    END IF;
    SELECT bool_or(status = 'preparing') INTO begins FROM (
        SELECT status FROM rollouts WHERE rollout_id = ANY (of_rollouts) ORDER BY rollout_id FOR NO KEY UPDATE
    ) AS held;
    SELECT array_agg((
        SELECT greatest(span_counter, (SELECT max(sequence_id) FROM spans WHERE rollout_id = of_rollout))
        FROM rollouts JOIN attempts USING (rollout_id)
        WHERE rollout_id = of_rollout AND attempt_id = of_attempt AND attempts.status = rollouts.status
            AND CASE rollouts.status
                WHEN 'running' THEN last_heartbeat_time IS NOT NULL
                WHEN 'preparing' THEN attempts.sequence_id = rollouts.attempts
            END
            AND coalesce((
                SELECT heartbeat_time FROM spans WHERE rollout_id = of_rollout AND attempt_id = of_attempt
                ORDER BY sequence_id DESC LIMIT 1
            ), at) <= at
    ) ORDER BY place) INTO highest
    FROM unnest(of_rollouts, of_attempts) WITH ORDINALITY AS given (of_rollout, of_attempt, place);
    IF array_position(highest, NULL) IS NOT NULL THEN
        RETURN NULL;
    END IF;
    -- All here run or begin to. Asked for those that are 'preparing', the planner takes the index by status while the
    -- tables are small, and stays with it: it then reads all that ever were, until the next vacuum.
    IF begins THEN
        UPDATE attempts SET status = 'running', last_heartbeat_time = greatest(last_heartbeat_time, at)
            FROM unnest(of_rollouts, of_attempts) AS given (of_rollout, of_attempt)
            WHERE rollout_id = of_rollout AND attempt_id = of_attempt AND status <> 'running';
        UPDATE rollouts SET status = 'running' WHERE rollout_id = ANY (of_rollouts) AND status <> 'running';
    END IF;
    INSERT INTO spans (
        rollout_id, attempt_id, sequence_id, trace_id, span_id, parent_id, name, start_time, end_time, body,
        heartbeat_time
    )
    SELECT of_rollouts[which], of_attempts[which], highest[which] + rank, trace, span, parent, named, started, ended,
        rest, at
    FROM unnest(attempts_at, ranks, traces, span_ids, parents, names, starts, ends, bodies)
        AS given (which, rank, trace, span, parent, named, started, ended, rest);
    RETURN highest;
END $$
"""
"""As the fourth version's, but for how it finds the attempts that begin."""


def upgrade() -> None:
    """Change the function; the tables stay as they are."""
    op.execute(ADD_SPANS)
