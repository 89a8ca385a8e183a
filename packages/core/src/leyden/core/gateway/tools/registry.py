"""Registry of tool families: finds the family of a chat template."""

from leyden.core.gateway.tools.deepseek import DEEPSEEK, DEEPSEEK_31
from leyden.core.gateway.tools.family import ToolFamily
from leyden.core.gateway.tools.hermes import HERMES
from leyden.core.gateway.tools.llama import LLAMA, LLAMA_4
from leyden.core.gateway.tools.mistral import MISTRAL, MISTRAL_ARGS, MISTRAL_CALL_ID, MISTRAL_TEKKEN
from leyden.core.gateway.tools.pythonic import PYTHONIC
from leyden.core.gateway.tools.qwen_coder import QWEN_CODER

FAMILIES: dict[str, ToolFamily] = {
    "qwen-coder": QWEN_CODER,
    "hermes": HERMES,
    "mistral-call-id": MISTRAL_CALL_ID,
    "mistral-args": MISTRAL_ARGS,
    "mistral": MISTRAL,
    "mistral-tekken": MISTRAL_TEKKEN,
    "deepseek": DEEPSEEK,
    "deepseek-3.1": DEEPSEEK_31,
    "pythonic": PYTHONIC,
    "llama": LLAMA,
    "llama-4": LLAMA_4,
}
"""Families by name; a template belongs to the first family whose marks it contains, all of them."""


def tool_family(template: str) -> ToolFamily | None:
    """Return the family of a chat template; None if no family matches, and then all answers are content."""
    plain = template.replace('\\"', '"')  # templates escape quotes as Jinja or as JSON does
    return next((family for family in FAMILIES.values() if all(mark in plain for mark in family.marks)), None)
