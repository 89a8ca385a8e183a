"""Hypothesis strategies for what agents, their users and their frameworks may put where Leyden keeps it.

    from hypothesis import given
    from leyden.core.testing.any_values import AnyValue, any_values

    @given(any_values())
    def test_my_store_takes_it(recipe: AnyValue) -> None:
        value = recipe.made()

Values are builtin ones at their limits, subclasses, records of every library that is installed, arrays, and objects
that raise, lie or block. Needs Hypothesis.
"""

from leyden.core.testing.any_values.draws import Draws
from leyden.core.testing.any_values.hostile import RELEASE
from leyden.core.testing.any_values.strategies import AnySpan, AnyValue, any_spans, any_values

__all__ = ["RELEASE", "AnySpan", "AnyValue", "Draws", "any_spans", "any_values"]
