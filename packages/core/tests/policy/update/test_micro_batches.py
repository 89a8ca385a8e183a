from collections import Counter

import torch
from hypothesis import given
from hypothesis import strategies as st

from leyden.core.data.encoding.tokens import token_ids
from leyden.core.policy.options import TOKEN_BUDGET
from leyden.core.policy.update.entries import step_weights
from leyden.core.policy.update.merge import TokenSequence, merged
from leyden.core.policy.update.micro_batches import MicroBatch, budget_for, micro_batches, shared_prefix
from leyden.core.testing.policies import RolloutShape, synthetic_rollouts

Seen = tuple[tuple[int, ...], int, float, float, float]

SHAPE = RolloutShape(system=5, question=2, calls=(3, 2), observation=4)


def sequences(count: int, seed: int = 0, shape: RolloutShape = SHAPE) -> list[TokenSequence]:
    trained = synthetic_rollouts(count, vocab=50, seed=seed, shape=shape, single_call_share=0.4)
    return merged(trained, step_weights(trained, "token"))


def read_back(batch: MicroBatch, prefix: tuple[int, ...]) -> Counter[Seen]:
    """Each entry of a batch with all the tokens it sees."""
    found: Counter[Seen] = Counter()
    numbers = torch.stack([batch.proximal_N, batch.advantage_N, batch.weight_N], dim=1)
    for n in range(len(batch.row_N)):
        row = batch.ids_BT[int(batch.row_N[n]), : int(batch.column_N[n]) + 1]
        behaviour, advantage, weight = (float(number) for number in numbers[n])
        found[(prefix + tuple(map(int, row)), int(batch.target_N[n]), behaviour, advantage, weight)] += 1
    return found


@given(st.integers(1, 12), st.integers(1, 200), st.booleans(), st.integers(0, 1000))
def test_batching_keeps_every_entry_and_what_it_sees(count: int, budget: int, share: bool, seed: int) -> None:
    given_sequences = sequences(count, seed)
    length = shared_prefix(given_sequences) if share else 0
    prefix = tuple(given_sequences[0].ids[:length])

    batches = micro_batches(given_sequences, budget, length)

    whole = micro_batches(given_sequences, 10**9)
    assert len(whole) == 1
    found: Counter[Seen] = Counter()
    for batch in batches:
        found += read_back(batch, prefix)
    assert found == read_back(whole[0], ())
    assert all(batch.ids_BT.numel() <= budget or len(batch.ids_BT) == 1 for batch in batches)


def test_rows_of_a_batch_are_of_similar_length() -> None:
    widths = [batch.ids_BT.shape[1] for batch in micro_batches(sequences(20), 60)]

    assert widths == sorted(widths, reverse=True)
    assert widths[0] > widths[-1]


def test_the_token_after_the_last_target_is_not_read() -> None:
    (sequence,) = sequences(1, shape=RolloutShape(system=3, question=1, calls=(2,)))

    (batch,) = micro_batches([sequence], 100)

    assert batch.ids_BT.numpy().tolist() == [list(sequence.ids[:-1])]


def test_the_shared_prefix_ends_where_sequences_differ_or_training_begins() -> None:
    many = sequences(8)
    shared = shared_prefix(many)
    alike = shared_prefix([many[0], many[0]])

    assert shared == 5
    assert len({tuple(sequence.ids[: shared + 1]) for sequence in many}) > 1
    # Position 6 predicts the first target, so its output is needed and must not be part of the prefix.
    assert alike == 6


def test_sequences_without_anything_in_common_share_nothing() -> None:
    first, second = sequences(1, seed=1)[0], sequences(1, seed=2)[0]
    other = TokenSequence(ids=token_ids([first.ids[0] + 1, *second.ids[1:]]), entries=second.entries)

    assert shared_prefix([first, other]) == 0


def group_of_long_prompts() -> list[TokenSequence]:
    """Eight rollouts of one prompt of 4,000 tokens, 200 tokens each."""
    shape = RolloutShape(system=3_000, question=1_000, calls=(200,), observation=0)
    trained = synthetic_rollouts(8, vocab=5_000, shape=shape, group_size=8)
    return merged(trained, step_weights(trained, "token"))


def tokens_read(sequences: list[TokenSequence], budget: int | None) -> int:
    return sum(batch.ids_BT.numel() for batch in micro_batches(sequences, budget, width=576))


def test_a_group_with_a_long_prompt_is_read_once_unless_a_budget_forbids_it() -> None:
    """The last token of each rollout predicts nothing and is not read."""
    group = group_of_long_prompts()
    assert tokens_read(group, None) == 4_000 + 8 * 199
    assert tokens_read(group, 4_096) == 8 * 4_199


def test_without_a_budget_a_pass_holds_twice_the_longest_rollout_and_never_little() -> None:
    assert budget_for(group_of_long_prompts(), None, 0) == 2 * 4_199
    assert budget_for(group_of_long_prompts(), None, 3_000) == TOKEN_BUDGET
    assert budget_for(sequences(3), None, 0) == TOKEN_BUDGET
    assert budget_for(group_of_long_prompts(), 100, 0) == 100
