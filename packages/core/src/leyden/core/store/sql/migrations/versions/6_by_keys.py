"""The functions that store spans find what is there by its keys alone, whatever the tables are like.

A plan that was made while they are small is kept for a while, and what is cheap then may read all that ever was later:
the index by status, or whole tables joined to what is given. So each row is looked for by its own key, what else is
asked of it is asked in a form that no index answers, and the least of all deadlines is the first in order.

Every version that changed them ends here, since a function is no data: it is made as it is to be, whatever it was.
SQLite files are changed by `store.sql.store`.
"""

from alembic import op

revision = "6"
down_revision = "5"

ADD_SPAN = """
CREATE OR REPLACE FUNCTION leyden_add_span(
    at float8, of_rollout text, of_attempt text, trace text, span text, parent text, named text,
    started float8, ended float8, rest bytea
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    number bigint;
    stood text;
    latest int;
    its_status text;
    its_place int;
    has_beaten boolean;
    last_number bigint;
    last_attempt text;
    last_beat float8;
BEGIN
    SELECT span_counter, status, attempts INTO number, stood, latest FROM rollouts AS held
        WHERE rollout_id = of_rollout
            AND coalesce(at < (
                SELECT deadline FROM rollouts WHERE deadline IS NOT NULL ORDER BY deadline LIMIT 1
            ), true)
        FOR NO KEY UPDATE;
    IF NOT FOUND OR stood NOT IN ('running', 'preparing') THEN
        RETURN NULL;
    END IF;
    -- Statements of their own, which see what was committed while the first one waited for the row.
    SELECT status, sequence_id, last_heartbeat_time IS NOT NULL INTO its_status, its_place, has_beaten FROM attempts
        WHERE rollout_id = of_rollout AND attempt_id = of_attempt;
    IF NOT FOUND OR its_status <> stood
        OR NOT (CASE stood WHEN 'running' THEN has_beaten ELSE its_place = latest END)
    THEN
        RETURN NULL;
    END IF;
    SELECT sequence_id, attempt_id, heartbeat_time INTO last_number, last_attempt, last_beat FROM spans
        WHERE rollout_id = of_rollout ORDER BY sequence_id DESC LIMIT 1;
    IF last_attempt <> of_attempt THEN
        SELECT heartbeat_time INTO last_beat FROM spans
            WHERE rollout_id = of_rollout AND attempt_id = of_attempt ORDER BY sequence_id DESC LIMIT 1;
    END IF;
    IF last_beat > at THEN
        RETURN NULL;
    END IF;
    number := 1 + greatest(number, last_number);
    INSERT INTO spans (
        rollout_id, attempt_id, sequence_id, trace_id, span_id, parent_id, name, start_time, end_time, body,
        heartbeat_time
    ) VALUES (of_rollout, of_attempt, number, trace, span, parent, named, started, ended, rest, at)
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    IF stood = 'preparing' THEN
        UPDATE attempts SET status = 'running', last_heartbeat_time = greatest(last_heartbeat_time, at)
            WHERE rollout_id = of_rollout AND attempt_id = of_attempt;
        UPDATE rollouts SET status = 'running' WHERE rollout_id = of_rollout;
    END IF;
    RETURN number;
END $$
"""
"""Stores a span as nearly all come, while nothing is overdue: a new one, without a number, of an attempt that runs, or
that begins to with it.

Returns its number, or NULL for any other span, with which it does nothing. It spares what a model call has to wait for
most of its statements; what becomes of all other spans is decided where the rules are. An attempt that begins keeps its
deadline, which may now be too early, and is then moved by who looks.
"""

ADD_SPANS = """
CREATE OR REPLACE FUNCTION leyden_add_spans(
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
    ) AS held;
    SELECT array_agg((
        SELECT greatest(span_counter, (SELECT max(sequence_id) FROM spans WHERE rollout_id = of_rollout))
        FROM rollouts JOIN attempts USING (rollout_id)
        WHERE rollout_id = of_rollout AND attempt_id = of_attempt
            AND attempts.status IS NOT DISTINCT FROM rollouts.status
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
    IF begins THEN
        -- Of a rollout that is to begin, one attempt is here: the latest.
        UPDATE attempts SET status = 'running', last_heartbeat_time = greatest(last_heartbeat_time, at)
            WHERE rollout_id = ANY (of_rollouts) AND status <> 'running'
                AND attempt_id = of_attempts[array_position(of_rollouts, rollout_id)];
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
"""Stores several spans, each of the attempt at a place, and the so many-th of its rollout's, as `leyden_add_span` one.

Returns the highest number that each attempt's rollout had before, or NULL where any of the spans is not as nearly all
are; then it does nothing. Raises unique_violation where one is there already.
"""


def upgrade() -> None:
    """Make the functions; the tables stay as they are."""
    op.execute(ADD_SPAN)
    op.execute(ADD_SPANS)
