# pyright: basic, reportAttributeAccessIssue=false
# `reward` is the module in this folder; type checkers may find another one of that name.
"""A majority vote over five runs of the question answering agent, on the normalised text that each answers."""

from agent import answer as agent
from reward import normalised, read

import leyden.core as agl


def answer(result):
    """The answer as the reward compares it; None if the form is wrong."""
    text = read(result)
    return None if text is None else normalised(text)


vote = agl.Vote(agent=agent, samples=5, answer=answer)
