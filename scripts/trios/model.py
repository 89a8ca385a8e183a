"""The campaign's model, and what a prompt says of who asks it. Knows no framework."""

import json
import re
from collections.abc import Sequence

from leyden.core.testing.gateway_bench import Turn

PROVIDER = "https://api.openai.com/v1"
API_KEY = "sk-nobody"
MODEL = "gpt-4.1-mini"
TIMEOUT_SECONDS = 120.0
"""Of the clients, also to connect: their own 5 s are soon over where a crowd shares one event loop."""
PLANNER, SOLVER, CRITIC = AGENTS = ("planner", "solver", "critic")
CALLS = {PLANNER: 1, SOLVER: 2, CRITIC: 1}
"""How often each agent of one rollout asks its model: the solver once for its tool, and once with what that gave."""

_ROLLOUT = re.compile(r"rollout-(\d+)")
_ROLE = re.compile(r"You are (\w+)\.")


def instructions(agent: str) -> str:
    """Return an agent's system prompt, by which its calls are known in the engine's log."""
    return f"You are {agent}. You work with others."


def question(rollout: int) -> str:
    """Return what a rollout is asked, by which its calls are known."""
    return f"rollout-{rollout}: double 7"


def double(number: int) -> int:
    """Double a number."""
    return 2 * number


def asker(conversation: Sequence[Turn]) -> tuple[str, list[int]]:
    """Return who asks, and the rollouts that the prompt speaks of."""
    system = " ".join(turn.text for turn in conversation if turn.role == "system")
    role = _ROLE.search(system)
    rollouts = {int(found) for turn in conversation for found in _ROLLOUT.findall(turn.text)}
    return (role[1] if role else "nobody"), sorted(rollouts)


def answer(conversation: list[Turn]) -> str:
    """Return what the model writes next: a call of the tool, a handover where there is a tool for it, or its name."""
    tools = conversation[0].text if conversation[0].text.startswith("[{") else ""
    doubled = any(turn.role == "tool" and turn.text.strip().isdigit() for turn in conversation)
    if '"double"' in tools and not doubled:
        return _call("double", number=7)
    if handover := re.search(r'"(transfer_to_\w+)"', tools):
        return _call(handover[1])
    role, rollouts = asker(conversation)
    return f"{role} has heard of {', '.join(f'rollout-{number}' for number in rollouts)}."


def _call(name: str, **arguments: int) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"
