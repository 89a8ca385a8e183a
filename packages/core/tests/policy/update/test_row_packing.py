from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leyden.core.policy.update.entries import step_weights
from leyden.core.policy.update.merge import TokenSequence, merged
from leyden.core.policy.update.micro_batches import micro_batches, shared_prefix
from leyden.core.policy.update.row_packing import Row, branching, single
from leyden.core.testing.policies import RolloutShape, synthetic_rollouts

WIDE = 10**6
"""A model so wide that a token always costs more than any attention."""
SHAPE = RolloutShape(system=4, question=3, calls=(4, 2), observation=2)
Seen = tuple[tuple[int, ...], int, float, float]


def sequences(count: int, vocab: int, seed: int = 0, group_size: int = 3) -> list[TokenSequence]:
    trained = synthetic_rollouts(count, vocab, seed, SHAPE, single_call_share=0.4, group_size=group_size)
    return merged(trained, step_weights(trained, "token"))


def path(row: Row, column: int) -> tuple[int, ...]:
    """The tokens that the token in `column` sees, itself included."""
    seen = [at for at in range(column + 1) if column < row.until_T[at]]
    assert [int(row.depth_T[at]) for at in seen] == list(range(len(seen)))
    return tuple(int(row.ids_T[at]) for at in seen)


def seen_in(rows: list[Row], prefix: tuple[int, ...] = ()) -> Counter[Seen]:
    """Each entry with all the tokens it sees."""
    return Counter(
        (
            prefix + path(row, int(row.entries.position_N[n])),
            int(row.entries.target_N[n]),
            float(row.entries.proximal_N[n]),
            float(row.entries.weight_N[n]),
        )
        for row in rows
        for n in range(len(row.entries))
    )


@given(
    st.integers(1, 14), st.sampled_from([2, 5, 50]), st.integers(1, 80), st.sampled_from([1, 8, WIDE]), st.booleans()
)
def test_each_entry_sees_what_it_sees_alone(count: int, vocab: int, most: int, width: int, share: bool) -> None:
    given_sequences = sequences(count, vocab)
    length = shared_prefix(given_sequences) if share else 0

    rows = branching(given_sequences, length, width, most)

    alone = [single(sequence, 0) for sequence in given_sequences]
    assert seen_in(rows, tuple(given_sequences[0].ids[:length])) == seen_in(alone)
    assert not any(row.branches for row in alone)
    longest = max(len(single(sequence, length)) for sequence in given_sequences)
    assert max(map(len, rows)) <= max(most, longest)


def test_every_token_of_the_tree_stands_once_where_tokens_are_dear() -> None:
    given_sequences = sequences(12, 3)
    beginnings = {
        tuple(sequence.ids[: end + 1])
        for sequence in given_sequences
        for end in range(int(sequence.entries.position_N.max()) + 1)
    }

    rows = branching(given_sequences, 0, WIDE, 10**9)

    assert len(rows) == 1
    assert len(rows[0]) == len(beginnings)


def test_sequences_that_share_nothing_have_rows_of_their_own() -> None:
    first, second = sequences(1, 50, seed=1), sequences(1, 50, seed=2)
    assert first[0].ids[0] != second[0].ids[0]

    rows = branching([*first, *second], 0, WIDE, 10**9)

    assert [row.branches for row in rows] == [False, False]


def test_a_row_grows_only_while_that_costs_less() -> None:
    """Of a narrow model attention is most of the work, and a token of a row is held against all others of it."""
    many = sequences(64, 50, group_size=64)

    narrow, wide = branching(many, 0, 1, 10**9), branching(many, 0, WIDE, 10**9)

    assert len(wide) == 1
    assert len(narrow) > 1
    for rows in (narrow, wide):
        assert sum(len(row) for row in rows) < sum(len(single(sequence, 0)) for sequence in many)


def test_a_batch_says_what_each_token_sees_only_where_a_row_has_branches() -> None:
    group, alone = sequences(6, 50, group_size=6), sequences(6, 50, group_size=1)

    (branched,) = micro_batches(group, 10**6, width=WIDE)
    (plain,) = micro_batches([alone[0]], 10**6, width=WIDE)

    assert branched.depth_BT is not None
    assert branched.until_BT is not None
    assert plain.depth_BT is None
    assert plain.until_BT is None


def test_padding_sees_itself_and_nothing_sees_it() -> None:
    """Softmax over nothing would be NaN, and so would every gradient."""
    (batch,) = micro_batches([*sequences(4, 50, group_size=4), *sequences(1, 50, seed=9)], 10**6, width=WIDE)
    assert batch.until_BT is not None
    rows, columns = batch.ids_BT.shape

    assert rows == 2
    until_BT = batch.until_BT.numpy()
    assert (until_BT > range(columns)).all()
    short = until_BT[1]
    end = int(short[0])
    assert end < columns
    assert short[end:].tolist() == list(range(end + 1, columns + 1))


def test_a_loss_of_several_transitions_has_a_row_for_each() -> None:
    trained = synthetic_rollouts(4, 50, shape=RolloutShape(system=4, question=2, calls=(3,)), group_size=4)
    one_each = merged(trained, step_weights(trained, "token"))

    (batch,) = micro_batches(one_each, 10**6, together=2, width=WIDE)

    assert len(batch.ids_BT) == 4
    assert batch.depth_BT is None


@pytest.mark.parametrize("width", [None, WIDE])
def test_batches_stay_within_their_budget(width: int | None) -> None:
    batches = micro_batches(sequences(24, 20, group_size=8), 60, width=width)

    assert len(batches) > 1
    assert all(batch.ids_BT.numel() <= 60 for batch in batches)
