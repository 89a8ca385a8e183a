# pyright: basic, reportAttributeAccessIssue=false
# `reward` is the module in this folder; type checkers may find another one of that name.
"""A majority vote over five runs of the math agent, on the number or the option that each answers."""

from agent import agent
from reward import last_answer, option_of, value_of

import leyden.core as agl


def answer(result):
    """The option, or the exact number; None if there is neither."""
    text = last_answer(result)
    value = value_of(text)
    return value.number if value else option_of(text)


vote = agl.Vote(agent=agent, samples=5, answer=answer)
