"""Chat template: renders a checkpoint's chat template with a limit on its steps and its time.

It runs no Python code from the checkpoint. The checkpoint's author wrote the template, and the agent's messages decide
how often its loops run. Therefore each loop iteration and each macro call counts as one step. Memory is not limited.
"""

import time
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from jinja2 import Environment, Template, nodes

from leyden.core.errors import GatewayError
from leyden.core.gateway.codec import Message, ToolDefinition

MOST_STEPS = 2_000_000
"""Default limit of steps; many times the steps of long conversations with many tools."""
STEP = "leyden_step"
_YIELD_EVERY = 64
"""Number of steps after which the thread yields to other threads."""


class TemplateTooLong(GatewayError):
    """The chat template exceeded its limit of steps or time."""


class Steps:
    """Step counter of a template: at most `most` steps, until `deadline` (seconds of `time.monotonic`)."""

    def __init__(self, most: int, deadline: float | None = None) -> None:
        self._left, self._deadline = most, deadline

    def stop(self) -> None:
        """Make the template fail at its next step, because no caller waits for its result."""
        self._left = 0

    def take(self) -> bool:
        """Count one step; raises TemplateTooLong if no step or no time is left.

        Returns True, because the call is part of a loop's condition.
        """
        self._left -= 1
        if self._left < 0:
            raise TemplateTooLong("its loops have too many iterations")
        if self._deadline is not None:
            if time.monotonic() > self._deadline:
                raise TemplateTooLong("it takes too long")
            if self._left % _YIELD_EVERY == 0:
                time.sleep(0)  # releases the interpreter lock to the event loop
        return True


_STEPS: ContextVar[Steps | None] = ContextVar("leyden template steps", default=None)


class limited:  # lower case, as it is used like a function; a class and not a generator, because it is entered often
    """Context manager that limits the templates rendered in its block to `steps`."""

    __slots__ = ("_steps", "_token")

    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    def __enter__(self) -> None:
        self._token = _STEPS.set(self._steps)

    def __exit__(self, *_: object) -> None:
        _STEPS.reset(self._token)


class ChatTemplate:
    """Chat templates of a tokenizer, rendered as the tokenizer's `apply_chat_template` renders them."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._compiled: dict[str, Template] = {}

    def render(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], given: Mapping[str, Any] | None = None
    ) -> str:
        """Return the prompt's text. `given` are more variables. Raises TemplateTooLong, or what the template raises."""
        tools_or_none = list(tools) or None
        source: str = self._tokenizer.get_chat_template(None, tools_or_none)
        template = self._compiled.get(source)
        if template is None:
            template = self._compiled[source] = _compile(source)
        special: dict[str, Any] = self._tokenizer.special_tokens_map
        variables = {"messages": messages, "tools": tools_or_none, "documents": None, "add_generation_prompt": True}
        everything = {**special, **(given or {}), **variables}
        if _STEPS.get() is not None:
            return template.render(**everything)
        with limited(Steps(MOST_STEPS)):
            return template.render(**everything)


def _compile(source: str) -> Template:
    """Compile a template in the Jinja environment of transformers, with a step count in each loop and macro."""
    from transformers.utils import chat_template_utils  # imported here, because it takes seconds

    compile_template: Any = chat_template_utils._compile_jinja_template  # pyright: ignore[reportPrivateUsage]  # no public way to its environment
    environment: Environment = compile_template(source).environment
    environment.extend(**{STEP: _step})
    tree = environment.parse(source)
    for loop in tree.find_all(nodes.For):
        loop.body.insert(0, nodes.ExprStmt(_count()))
        if loop.test is not None:
            loop.test = nodes.And(_count(), loop.test)
    for macro in tree.find_all((nodes.Macro, nodes.CallBlock)):
        macro.body.insert(0, nodes.ExprStmt(_count()))
    tree.set_environment(environment)
    return environment.template_class.from_code(environment, environment.compile(tree), environment.make_globals(None))


def _count() -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(STEP), [], [], None, None)


def _step() -> bool:
    steps = _STEPS.get()
    return steps is None or steps.take()
