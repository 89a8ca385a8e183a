"""Every agent of the zoo, held with Leyden against itself without; see README.md."""

from typing import Any

import pytest
from zoo_harness.agent_file import ZooAgent, all_agents
from zoo_harness.campaign import Campaign

pytestmark = pytest.mark.timeout(900)

SHORT = ("plain",)
"""Families of which one agent is run in every test, in seconds."""


def parameters() -> list[Any]:
    """All agents. Where time is short, the first of one family is run; the others are `long`."""
    found: list[Any] = []
    to_run = {*SHORT}
    for agent in all_agents():
        marks = [pytest.mark.e2e] if agent.family in to_run else [pytest.mark.long]
        found.append(pytest.param(agent, id=f"{agent.family}-{agent.name}", marks=marks))
        to_run.discard(agent.family)
    return found


@pytest.mark.parametrize("agent", parameters())
def test_agent(agent: ZooAgent, campaign: Campaign) -> None:
    outcome = campaign.outcome(agent)
    assert not outcome.problems["author"], "\n".join(["without Leyden:", *outcome.problems["author"]])
    problems = "\n".join(outcome.with_leyden)
    mark = agent.spec.mark
    if mark is None:
        assert not problems, problems
        return
    assert problems, f"{agent.path.name} passes now: take its mark away ({mark})"
    assert (agent.spec.seen or "") in problems, f"another problem than the mark's ({mark}):\n{problems}"
