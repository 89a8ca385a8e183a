"""`PromptComponents`: the prompts of a run that an algorithm may change, as texts by name."""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from leyden.core.data.prompts.edits import PromptComponent, PromptEdits
from leyden.core.data.resources import NamedResources, PromptTemplate, Resource
from leyden.core.errors import PromptError, UsageError

Texts = dict[str, str]
"""One candidate: the text of every component by its name."""


class PromptComponents:
    """The components among `resources`: prompt templates, and the components of prompt edits.

    `only` are names or patterns such as `writer.*`; without any, every component may change. Raises UsageError if a
    pattern fits no component, if there is no component, or if two have one name.
    """

    def __init__(self, resources: Mapping[str, Resource], only: Sequence[str] = ()) -> None:
        self._resources = {
            name: resource for name, resource in resources.items() if isinstance(resource, PromptTemplate | PromptEdits)
        }
        found = _all_components(self._resources)
        if not found:
            raise UsageError(
                "the run has no prompts: give --prompt NAME=FILE for a prompt template that the agent fills, or "
                "--prompts FILE for prompts that `leyden prompts AGENT` found"
            )
        for pattern in only:
            if not any(fnmatchcase(name, pattern) for name in found):
                raise UsageError(f"no prompt is called {pattern!r}; the run has {', '.join(found)}")
        self._sources = {
            name: source
            for name, source in found.items()
            if not only or any(fnmatchcase(name, pattern) for pattern in only)
        }

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the components, in order."""
        return tuple(self._sources)

    @property
    def texts(self) -> Texts:
        """The texts that the run begins with."""
        return {name: _text(self._resources[source], name) for name, source in self._sources.items()}

    def component(self, name: str) -> PromptComponent | None:
        """Return the component of the agent that `name` is; None for a prompt template."""
        resource = self._resources[self._sources[name]]
        return _component(resource, name) if isinstance(resource, PromptEdits) else None

    def description(self, name: str) -> str:
        """Return where the text stands and which variables it must have, as one sentence."""
        component = self.component(name)
        if component is None:
            template = self._resources[self._sources[name]]
            assert isinstance(template, PromptTemplate)
            return f"It is a prompt template of the agent.{_rule(template.variables(), template.engine)}"
        parts = [f"the {component.place}"]
        parts += [f"of the agent {component.agent}"] if component.agent else []
        parts += [f"in its node {component.node}"] if component.node else []
        return f"It is {' '.join(parts)}.{_rule(_variables(component), 'f-string')}"

    def check(self, name: str, text: str) -> None:
        """Raise PromptError unless `text` is valid, and has the variables of the agent's own text and no others."""
        resource = self._resources[self._sources[name]]
        if isinstance(resource, PromptEdits):
            resource.with_texts({name: text})
            return
        own, new = set(resource.variables()), set(PromptTemplate(template=text, engine=resource.engine).variables())
        if lost := own - new:
            raise PromptError(f"the new text lacks the variable {', '.join(sorted(lost))}")
        if invented := new - own:
            raise PromptError(f"the new text has the variable {', '.join(sorted(invented))}, which nothing fills")

    def resources(self, texts: Mapping[str, str]) -> NamedResources:
        """Return the resources with which rollouts have these texts."""
        found: NamedResources = {}
        for source, resource in self._resources.items():
            own = {name: texts[name] for name, where in self._sources.items() if where == source and name in texts}
            if isinstance(resource, PromptEdits):
                found[source] = resource.with_texts(own)
            elif own:
                found[source] = PromptTemplate(template=own[source], engine=resource.engine)
        return found


def _all_components(resources: Mapping[str, PromptTemplate | PromptEdits]) -> dict[str, str]:
    """Return the resource of each component, by the component's name."""
    found: dict[str, str] = {}
    for source, resource in resources.items():
        names = resource.texts if isinstance(resource, PromptEdits) else (source,)
        for name in names:
            if name in found:
                raise UsageError(f"two prompts of the run are called {name!r}; rename one")
            found[name] = source
    return found


def _text(resource: PromptTemplate | PromptEdits, name: str) -> str:
    return resource.texts[name] if isinstance(resource, PromptEdits) else resource.template


def _component(edits: PromptEdits, name: str) -> PromptComponent:
    return next(component for component in edits.components if component.name == name)


def _variables(component: PromptComponent) -> tuple[str, ...]:
    from leyden.core.data.prompts.template import TextTemplate

    return tuple(sorted(TextTemplate.parse(component.text).variables))


def _rule(variables: Sequence[str], engine: str) -> str:
    """Return the sentence about variables and braces."""
    braces = "" if engine == "jinja" else " Literal braces are doubled: {{ and }}."
    if not variables:
        return f" It has no variables.{braces}"
    written = ", ".join(f"{{{{ {name} }}}}" if engine == "jinja" else f"{{{name}}}" for name in variables)
    return f" The agent fills its variables, each of which must stay: {written}.{braces}"
