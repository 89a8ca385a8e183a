"""`Budget`: how many rollouts, tokens and dollars a search for prompts may spend."""

import msgspec

from leyden.core.algorithm.prompts.search import PromptSearch
from leyden.core.errors import UsageError

Price = tuple[float, float]
"""US dollars for a million input tokens, and for a million output tokens."""


class BudgetSpent(Exception):
    """The next rollouts or the next call do not fit the budget. The message is the reason."""


class BudgetOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of a search; None: no limit. Evaluations on held-out sets that only measure the run are not counted."""

    rollouts: int | None = None
    """Rollouts on training and validation tasks. The limit is never exceeded, and what is left at the end is spent on
    further comparisons of the best candidates."""
    tokens: int | None = None
    """Input and output tokens of the agent and the reflection model. The search ends after the batch of rollouts, or
    the call, that reaches the limit."""
    dollars: float | None = None
    """Cost of the agent's calls and the reflection model's, with the same precision as `tokens`."""
    agent_price: Price | None = None
    """Price of the agent's tokens; None: LiteLLM's price list, which knows the models of providers."""

    def __post_init__(self) -> None:
        for name in ("rollouts", "tokens", "dollars"):
            value: float | None = getattr(self, name)
            if value is not None and value <= 0:
                raise UsageError(f"budget.{name} must be above 0, not {value}")
        if self.agent_price is not None and min(self.agent_price) < 0:
            raise UsageError(f"budget.agent_price must not be negative: {self.agent_price}")


class Budget:
    """Counts what a search has spent.

    Raises UsageError if `dollars` is limited, and the price of the reflection model is unknown.
    """

    def __init__(self, options: BudgetOptions, search: PromptSearch, *, reflection_is_priced: bool) -> None:
        self.options, self._search = options, search
        limits = {"rollouts": options.rollouts, "tokens": options.tokens, "dollars": options.dollars}
        search.limits = {name: limit for name, limit in limits.items() if limit is not None}
        if options.dollars is not None and not reflection_is_priced:
            raise UsageError(
                "budget.dollars needs the price of the reflection model, which is not known: set reflection.price to "
                "[input, output] in US dollars for a million tokens"
            )

    @property
    def rollouts(self) -> int:
        """Number of rollouts that were spent."""
        return len(self._search.evaluations)

    @property
    def rollouts_left(self) -> int | None:
        """Number of rollouts that are left; None without a limit."""
        return None if self.options.rollouts is None else self.options.rollouts - self.rollouts

    @property
    def tokens(self) -> int:
        """Number of tokens that were spent."""
        return self._search.input_tokens() + self._search.output_tokens()

    @property
    def dollars(self) -> float | None:
        """Cost so far; None if a part of it is unknown."""
        return self._search.dollars()

    def agent_cost(self, input_tokens: int, output_tokens: int, listed: float | None) -> float | None:
        """Return the cost of a rollout: by `agent_price` if it is given, else the `listed` one.

        Raises UsageError if it is unknown and `dollars` is limited.
        """
        if (price := self.options.agent_price) is not None:
            return (price[0] * input_tokens + price[1] * output_tokens) / 1e6
        if listed is None and self.options.dollars is not None:
            raise UsageError(
                "budget.dollars needs the price of the agent's tokens, which is not known: set budget.agent_price to "
                "[input, output] in US dollars for a million tokens"
            )
        return listed

    def check(self, rollouts: int = 0) -> None:
        """Raise BudgetSpent if so many further rollouts do not fit, or if tokens or dollars are spent."""
        options, left = self.options, self.rollouts_left
        if left is not None and rollouts > left:
            raise BudgetSpent(
                f"{self.rollouts} of {options.rollouts} rollouts are spent, and the next batch has {rollouts}"
            )
        if options.tokens is not None and self.tokens >= options.tokens:
            raise BudgetSpent(f"{self.tokens:,} of {options.tokens:,} tokens are spent")
        if options.dollars is not None and (self.dollars or 0.0) >= options.dollars:
            raise BudgetSpent(f"${self.dollars:.2f} of ${options.dollars:.2f} are spent")

    def metrics(self) -> dict[str, float]:
        """Return what was spent, and what is left of the limits, for the run's log."""
        spent = {f"spent_{name}": number for name, number in self._search.spent().items()}
        return {**spent, **{f"left_{name}": number for name, number in self._search.left().items()}}
