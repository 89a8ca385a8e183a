"""`PromptEdits`: the prompt components of an agent, and the new texts that the gateway sends in their places."""

from collections.abc import Mapping
from typing import Literal

import msgspec

from leyden.core.data.prompts.template import TextTemplate, check_variables
from leyden.core.errors import PromptError

Role = Literal["system", "developer", "user", "prompt", "tool", "output"]
"""Where a component stands: in a message of this role, in a prompt of Completions, in the description of a tool, or in
the description of the format that an answer must have."""


class PromptPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Place of a text in a request."""

    role: Role
    position: int = 0
    """Number of the message among those of its role, or of the prompt, from 0.

    The `instructions` of the Responses API and `system` of the Messages API are the first system message.
    """
    part: int = 0
    """Number of the text among those of its message, from 0; images separate the texts."""
    tool: str = ""
    """Name of the tool, or of the format of the answer."""

    def __str__(self) -> str:
        if self.role in ("tool", "output"):
            kind = "tool" if self.role == "tool" else "output format"
            return f"description of the {kind} {self.tool}".rstrip()
        kind = "prompt" if self.role == "prompt" else f"{self.role} message"
        part = f", text {self.part + 1}" if self.part else ""
        return f"{kind} {self.position + 1}{part}"


class PromptComponent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One text that an agent sends in every call, with variables where its calls differ."""

    name: str
    """Name among the components of the agent."""
    agent: str | None = None
    """Name that the agent's framework gives it; None for calls without an agent's name."""
    node: str | None = None
    """Name of the graph node that makes the calls; None for calls without one."""
    role: Role
    position: int = 0
    part: int = 0
    tool: str = ""
    calls: int = 0
    """Number of calls in which it was found."""
    text: str
    """The agent's own text, with variables such as `{v1}`; literal braces are doubled."""
    new_text: str | None = None
    """Text to send in its place, with the same variables; None: the agent's own."""

    @property
    def place(self) -> PromptPlace:
        """Place in a request."""
        return PromptPlace(role=self.role, position=self.position, part=self.part, tool=self.tool)

    @property
    def current(self) -> str:
        """The text that is sent: the new one, if there is one."""
        return self.text if self.new_text is None else self.new_text

    @property
    def is_changed(self) -> bool:
        """Whether another text than the agent's own is sent."""
        return self.current != self.text

    def check(self) -> None:
        """Raise PromptError if its texts cannot be parsed, or if they have different variables."""
        own, field = TextTemplate.parse(""), "text"
        try:
            own = TextTemplate.parse(self.text)
            if "" in own.fixed[1:-1]:
                raise PromptError("two variables follow each other, so their values cannot be told apart")
            field = "new_text"
            if self.new_text is not None:
                check_variables(own, TextTemplate.parse(self.new_text))
        except PromptError as error:
            raise PromptError(f"{field} of the prompt component {self.name!r}: {error}") from None


class PromptEdits(msgspec.Struct, frozen=True, kw_only=True, tag="prompt_edits"):
    """Prompt components of an agent with their new texts: a resource with which rollouts run.

    Raises PromptError for two components with one name or with one text at one place, and for a new text that lacks a
    variable of the agent's own text, or has one that this does not have.
    """

    components: tuple[PromptComponent, ...] = ()

    def __post_init__(self) -> None:
        names: set[str] = set()
        texts: dict[object, str] = {}
        for component in self.components:
            component.check()
            if component.name in names:
                raise PromptError(f"two prompt components are called {component.name!r}")
            names.add(component.name)
            key = (component.agent, component.node, component.place, component.text)
            if (other := texts.setdefault(key, component.name)) != component.name:
                raise PromptError(f"the prompt components {other!r} and {component.name!r} are the same text")

    @property
    def changed(self) -> tuple[PromptComponent, ...]:
        """Components of which another text than the agent's own is sent."""
        return tuple(component for component in self.components if component.is_changed)

    @property
    def texts(self) -> dict[str, str]:
        """The text that is sent of each component, by the component's name."""
        return {component.name: component.current for component in self.components}

    def with_texts(self, texts: Mapping[str, str]) -> "PromptEdits":
        """Return these components with other new texts, by their names; the texts of the others stay as they are.

        Raises PromptError for an unknown name, and for a text that loses or invents a variable.
        """
        for name in texts:
            if all(component.name != name for component in self.components):
                known = ", ".join(component.name for component in self.components) or "none"
                raise PromptError(f"there is no prompt component {name!r}; there are: {known}")
        return PromptEdits(components=tuple(_with_text(one, texts.get(one.name)) for one in self.components))


def _with_text(component: PromptComponent, text: str | None) -> PromptComponent:
    if text is None:
        return component
    return msgspec.structs.replace(component, new_text=None if text == component.text else text)
