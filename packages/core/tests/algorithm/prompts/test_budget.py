import pytest

from leyden.core.algorithm.prompts.budget import Budget, BudgetOptions, BudgetSpent
from leyden.core.algorithm.prompts.search import Evaluation, PromptSearch, Reflection
from leyden.core.errors import UsageError


def evaluation(number: int, tokens: tuple[int, int] = (0, 0), cost: float | None = 0.0) -> Evaluation:
    return Evaluation(
        row=number,
        held_out=None,
        resources_id="rs",
        repeat=0,
        step=1,
        score=0.0,
        rollout_id=f"ro-{number}",
        input_tokens=tokens[0],
        output_tokens=tokens[1],
        cost=cost,
    )


def budget(search: PromptSearch, options: BudgetOptions) -> Budget:
    return Budget(options, search, reflection_is_priced=True)


def test_rollouts_are_limited_exactly() -> None:
    search = PromptSearch(evaluations=[evaluation(number) for number in range(3)])
    spent = budget(search, BudgetOptions(rollouts=5))
    assert (spent.rollouts, spent.rollouts_left) == (3, 2)
    spent.check(2)
    with pytest.raises(BudgetSpent, match="3 of 5 rollouts are spent, and the next batch has 3"):
        spent.check(3)


def test_without_limits_nothing_is_spent() -> None:
    spent = budget(PromptSearch(evaluations=[evaluation(0, (10**9, 10**9))]), BudgetOptions())
    assert spent.rollouts_left is None
    spent.check(10**6)


def test_tokens_are_those_of_the_agent_and_the_reflection_model() -> None:
    search = PromptSearch(
        evaluations=[evaluation(0, (10, 5)), evaluation(1, (20, 5))],
        reflections={"1.0": Reflection(text="a", input_tokens=100, output_tokens=50, cost=0.5)},
        unused={"2.0": Reflection(text="b", input_tokens=1000, output_tokens=1000, cost=9.0)},
    )
    spent = budget(search, BudgetOptions(tokens=191))
    assert spent.tokens == 190, "an answer that a repeated step has not used yet does not count"
    spent.check()
    with pytest.raises(BudgetSpent, match="190 of 190 tokens are spent"):
        budget(search, BudgetOptions(tokens=190)).check()


def test_dollars_are_those_of_rollouts_and_reflections() -> None:
    search = PromptSearch(
        evaluations=[evaluation(0, (300_000, 100_000), 0.5)],
        reflections={"1.0": Reflection(text="a", cost=0.25)},
    )
    spent = budget(search, BudgetOptions(dollars=0.76))
    assert spent.dollars == pytest.approx(0.75)
    spent.check()
    with pytest.raises(BudgetSpent, match=r"\$0.75 of \$0.75 are spent"):
        budget(search, BudgetOptions(dollars=0.75)).check()
    expected = {"spent_rollouts": 1, "spent_tokens": 400_000, "spent_dollars": pytest.approx(0.75)}
    assert expected.items() <= spent.metrics().items()


def test_a_rollout_costs_its_own_price_or_the_listed_one() -> None:
    own = budget(PromptSearch(), BudgetOptions(dollars=1.0, agent_price=(1.0, 2.0)))
    assert own.agent_cost(300_000, 100_000, None) == pytest.approx(1.0 * 0.3 + 2.0 * 0.1)
    assert own.agent_cost(300_000, 100_000, 9.0) == pytest.approx(0.5)
    listed = budget(PromptSearch(), BudgetOptions())
    assert listed.agent_cost(1, 1, 0.125) == 0.125
    assert listed.agent_cost(1, 1, None) is None


def test_dollars_are_unknown_without_prices() -> None:
    search = PromptSearch(reflections={"1.0": Reflection(text="a", cost=None)})
    assert budget(search, BudgetOptions()).dollars is None
    assert budget(PromptSearch(evaluations=[evaluation(0, cost=None)]), BudgetOptions()).dollars is None
    with pytest.raises(UsageError, match=r"set budget\.agent_price to"):
        budget(PromptSearch(), BudgetOptions(dollars=1.0)).agent_cost(1, 1, None)
    with pytest.raises(UsageError, match=r"set reflection\.price to"):
        Budget(BudgetOptions(dollars=1.0), PromptSearch(), reflection_is_priced=False)


@pytest.mark.parametrize("options", [{"rollouts": 0}, {"tokens": -1}, {"dollars": 0.0}, {"agent_price": (1.0, -1.0)}])
def test_limits_that_cannot_be_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="budget"):
        BudgetOptions(**options)  # pyright: ignore[reportArgumentType]
