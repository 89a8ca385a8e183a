"""An attempt's heartbeat is the time of its last span, so that storing one writes nothing else.

SQLite files are changed by `store.sql`.
"""

import sqlalchemy as sa
from alembic import op

revision = "3"
down_revision = "2"

ADD_SPAN = """
CREATE OR REPLACE FUNCTION leyden_add_span(
    at float8, of_rollout text, of_attempt text, trace text, span text, parent text, named text,
    started float8, ended float8, rest bytea
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    number bigint;
BEGIN
    IF (SELECT min(deadline) FROM rollouts WHERE deadline IS NOT NULL) <= at THEN
        RETURN NULL;
    END IF;
    SELECT span_counter INTO number FROM rollouts
        WHERE rollout_id = of_rollout AND status = 'running' FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    -- A statement of its own, which sees what was committed while this one waited for the row.
    INSERT INTO spans (
        rollout_id, attempt_id, sequence_id, trace_id, span_id, parent_id, name, start_time, end_time, body,
        heartbeat_time
    )
    SELECT of_rollout, of_attempt, 1 + greatest(
            number, (SELECT max(sequence_id) FROM spans WHERE rollout_id = of_rollout)
        ), trace, span, parent, named, started, ended, rest, at
    FROM attempts
    WHERE rollout_id = of_rollout AND attempt_id = of_attempt AND status = 'running'
        AND last_heartbeat_time IS NOT NULL
        AND coalesce((
            SELECT heartbeat_time FROM spans WHERE rollout_id = of_rollout AND attempt_id = of_attempt
            ORDER BY sequence_id DESC LIMIT 1
        ), at) <= at
    ON CONFLICT DO NOTHING
    RETURNING sequence_id INTO number;
    RETURN CASE WHEN FOUND THEN number END;
END $$
"""
"""Stores a span as nearly all come: a new one, without a number, of an attempt that runs while nothing is overdue.

Returns its number, or NULL for any other span, with which it does nothing. It spares what a model call has to wait for
most of its statements; what becomes of all other spans is decided where the rules are.
"""

ADD_SPANS = """
CREATE FUNCTION leyden_add_spans(
    at float8, of_rollouts text[], of_attempts text[], attempts_at int[], ranks int[], traces text[], span_ids text[],
    parents text[], names text[], starts float8[], ends float8[], bodies bytea[]
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    highest bigint[];
BEGIN
    IF (SELECT min(deadline) FROM rollouts WHERE deadline IS NOT NULL) <= at THEN
        RETURN NULL;
    END IF;
    PERFORM FROM rollouts WHERE rollout_id = ANY (of_rollouts) ORDER BY rollout_id FOR NO KEY UPDATE;
    SELECT array_agg((
        SELECT greatest(span_counter, (SELECT max(sequence_id) FROM spans WHERE rollout_id = of_rollout))
        FROM rollouts JOIN attempts USING (rollout_id)
        WHERE rollout_id = of_rollout AND rollouts.status = 'running'
            AND attempt_id = of_attempt AND attempts.status = 'running' AND last_heartbeat_time IS NOT NULL
            AND coalesce((
                SELECT heartbeat_time FROM spans WHERE rollout_id = of_rollout AND attempt_id = of_attempt
                ORDER BY sequence_id DESC LIMIT 1
            ), at) <= at
    ) ORDER BY place) INTO highest
    FROM unnest(of_rollouts, of_attempts) WITH ORDINALITY AS given (of_rollout, of_attempt, place);
    IF array_position(highest, NULL) IS NOT NULL THEN
        RETURN NULL;
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
"""Stores several spans, each of the attempt at a place, and the so many-th of its rollout's, as `leyden_add_span` one.

Returns the highest number that each attempt's rollout had before, or NULL where any of the spans is not as nearly all
are; then it does nothing. Raises unique_violation where one is there already.
"""


def upgrade() -> None:
    """Give spans a heartbeat of their own."""
    op.add_column("spans", sa.Column("heartbeat_time", sa.Float))
    op.execute(ADD_SPAN)
    op.execute(ADD_SPANS)
