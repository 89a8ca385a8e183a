"""`CompiledEdits`: prompt edits in the form in which they are applied to the texts of a call."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from leyden.core.data.prompts.edits import PromptComponent, PromptPlace, Role
from leyden.core.data.prompts.places import PromptText
from leyden.core.data.prompts.template import TextTemplate

MOST_NAMES = 3
"""Most names of components in a message."""
_log = logging.getLogger("leyden.prompts")


class ReplacedText(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One text of a call that was replaced, as the call's record keeps it."""

    component: str
    """Name of the prompt component."""
    role: Role
    position: int = 0
    part: int = 0
    tool: str = ""
    own: str
    """The text that the agent sent."""

    @property
    def place(self) -> PromptPlace:
        """Place in the request."""
        return PromptPlace(role=self.role, position=self.position, part=self.part, tool=self.tool)


@dataclass(frozen=True, slots=True)
class _Edit:
    name: str
    own: TextTemplate
    new: TextTemplate | None
    """New text; None for a component that is sent as it is."""


class CallerEdits:
    """Edits of the texts that one agent, or one node of its graph, sends.

    `components` are all of its components. Those without a new text are needed at the places of others.
    """

    def __init__(self, components: Sequence[PromptComponent]) -> None:
        self._edits: dict[PromptPlace, list[_Edit]] = {one.place: [] for one in components if one.is_changed}
        for component in components:
            if component.place in self._edits:
                new = TextTemplate.parse(component.current) if component.is_changed else None
                self._edits[component.place].append(_Edit(component.name, TextTemplate.parse(component.text), new))
        for edits in self._edits.values():
            edits.sort(key=lambda edit: -edit.own.size)  # the text that says most is compared first
        self.roles = frozenset(place.role for place in self._edits)
        """Roles of the places at which texts are replaced."""
        is_named = any(one.agent or one.node for one in components)
        # The first message of a user differs between the parts of an agent whose calls have no name.
        self._reported = {place for place in self._edits if place.role in ("user", "prompt") and not is_named}

    def replace(self, texts: Iterable[PromptText]) -> list[tuple[PromptText, ReplacedText, str]]:
        """Replace the texts that are components with a new text; return each, its record and the new text.

        A text is compared as a whole. Where no component matches, the text stays as it is, which is logged once for
        each place.
        """
        replaced: list[tuple[PromptText, ReplacedText, str]] = []
        # All are read before one is replaced, which may change the list in which the others are.
        for found, edits in [(text, self._edits[text.place]) for text in texts if text.place in self._edits]:
            for edit in edits:
                values = edit.own.match(found.text)
                if values is not None:
                    if edit.new is not None:
                        replaced.append((found, _record(edit.name, found), edit.new.fill(values)))
                    break
            else:
                self._report(found.place)
        for found, _, new in replaced:
            found.put(new)
        return replaced

    def _report(self, place: PromptPlace) -> None:
        if place not in self._reported:
            self._reported.add(place)
            all_names = [repr(edit.name) for edit in self._edits[place] if edit.new is not None]
            more = f" and {len(all_names) - MOST_NAMES} more" if len(all_names) > MOST_NAMES else ""
            names = ", ".join(all_names[:MOST_NAMES]) + more
            _log.warning(
                "a call has another text as %s than the prompt component %s: it is sent unchanged. If the agent's "
                "prompt was changed, find its components again with `leyden prompts`",
                place,
                names,
            )


def _record(component: str, found: PromptText) -> ReplacedText:
    at = found.place
    return ReplacedText(
        component=component, role=at.role, position=at.position, part=at.part, tool=at.tool, own=found.text
    )


class CompiledEdits:
    """Edits by the agent and the node whose texts they replace."""

    def __init__(self, components: Iterable[PromptComponent]) -> None:
        by_caller: dict[tuple[str | None, str | None], list[PromptComponent]] = {}
        for component in components:
            by_caller.setdefault((component.agent, component.node), []).append(component)
        self._callers = {
            caller: CallerEdits(found)
            for caller, found in by_caller.items()
            if any(component.is_changed for component in found)
        }

    def __bool__(self) -> bool:
        return bool(self._callers)

    def of(self, agent: str | None, node: str | None) -> CallerEdits | None:
        """Return the edits of a caller's texts; None if none of its texts is replaced."""
        return self._callers.get((agent, node))
