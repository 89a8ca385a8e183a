"""Resources: versioned things that an agent runs with, such as model endpoints and prompt templates.

A prompt template may come from a language model that read untrusted text. Both engines therefore refuse access to
private attributes of the values, which `str.format` and plain Jinja allow.
"""

import string
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from leyden.core.data.prompts.edits import PromptEdits
from leyden.core.errors import PromptError, first_line

if TYPE_CHECKING:
    from jinja2 import Environment


class LLM(msgspec.Struct, frozen=True, kw_only=True, tag="llm"):
    """An OpenAI-compatible endpoint for the agent's model calls."""

    endpoint: str
    """Base URL, usually ending in `/v1`. In a dry run also a provider's model, such as `anthropic/claude-x`."""
    model: str
    """Name of the model at the endpoint.

    In a dry run, this model answers whatever model name the agent sends; with "", the agent's own model names are
    forwarded.
    """
    sampling_parameters: dict[str, Any] = {}
    api_key: str | None = None
    replicas: tuple[str, ...] = ()
    """Base URLs of further servers of the same model, with the same key. Only a dry run and a gateway use them."""
    attempt: tuple[str, str] | None = None
    """(rollout id, attempt id) that the endpoint records for; None where it belongs to no single attempt."""

    def get_base_url(self, rollout_id: str | None = None, attempt_id: str | None = None) -> str:
        """Return the base URL for an OpenAI client inside this attempt.

        Raises ValueError when the ids are not those of the attempt that the endpoint belongs to.
        """
        given = (rollout_id, attempt_id)
        if self.attempt is not None and given != (None, None) and given != self.attempt:
            raise ValueError(f"this endpoint belongs to attempt {self.attempt}, not to {given}")
        return self.endpoint


PromptEngine = Literal["f-string", "jinja"]
ENGINES: tuple[PromptEngine, ...] = ("f-string", "jinja")


class MissingVariable(PromptError, KeyError):
    """A prompt template has a placeholder for which no value was given."""

    __str__ = Exception.__str__  # that of KeyError would quote the message


class PromptTemplate(msgspec.Struct, frozen=True, kw_only=True, tag="prompt_template"):
    """A prompt with placeholders: `{name}` with the engine `f-string`, `{{ name }}` with `jinja`."""

    template: str
    engine: PromptEngine = "f-string"

    def format(self, **values: Any) -> str:
        """Return the prompt with its placeholders filled.

        Raises MissingVariable, which is also a KeyError, for a placeholder without a value, and PromptError for a
        template that is malformed or accesses private attributes.
        """
        if self._checked_engine() == "jinja":
            return _render(self.template, values)
        return _FORMATTER.fill(self.template, values)

    def variables(self) -> tuple[str, ...]:
        """Return the names of the values that the template needs, sorted; raises PromptError if it is malformed."""
        if self._checked_engine() == "jinja":
            return _jinja_variables(self.template)
        return _FORMATTER.names(self.template)

    def _checked_engine(self) -> PromptEngine:
        if self.engine not in ENGINES:
            raise PromptError(f"prompt templates have no engine {self.engine!r}: use {' or '.join(ENGINES)}")
        return self.engine


Resource = LLM | PromptTemplate | PromptEdits
NamedResources = dict[str, Resource]


class ResourcesUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """One immutable version of a set of resources."""

    resources_id: str
    version: int
    create_time: float
    update_time: float
    resources: NamedResources


def prompts_of(resources: Mapping[str, Resource]) -> dict[str, PromptTemplate]:
    """Return the prompt templates among `resources`."""
    return {name: resource for name, resource in resources.items() if isinstance(resource, PromptTemplate)}


def edits_of(resources: Mapping[str, Resource]) -> dict[str, PromptEdits]:
    """Return the prompt edits among `resources`."""
    return {name: resource for name, resource in resources.items() if isinstance(resource, PromptEdits)}


_FRAME_NAMES = frozenset(
    f"{kind}_{name}" for kind in ("gi", "cr", "ag") for name in ("frame", "code", "await", "yieldfrom", "origin")
) | {"tb_frame", "tb_next", "f_back", "f_builtins", "f_globals", "f_locals", "f_code"}
"""Attributes of generators, coroutines, tracebacks and frames, through which a template would read a module's names."""


class _Formatter(string.Formatter):
    """Formatter with the syntax of `str.format` that reads no private attributes."""

    def fill(self, template: str, values: Mapping[str, Any]) -> str:
        try:
            return self.vformat(template, (), values)
        except MissingVariable:
            raise
        except (AttributeError, LookupError, MemoryError, TypeError) as error:
            raise _unfilled(error) from error
        except ValueError as error:
            raise _malformed(error) from error

    def names(self, template: str) -> tuple[str, ...]:
        try:
            return tuple(sorted(self._names(template)))
        except ValueError as error:
            raise _malformed(error) from error

    def _names(self, template: str) -> set[str]:
        found: set[str] = set()
        for _, field, spec, _ in self.parse(template):
            if field is not None:
                found.add(field.replace("[", ".").partition(".")[0])
                found |= self._names(spec or "")
        return found

    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return the value of a placeholder such as `task.title`; refuses private names and those of frames."""
        if any(part.startswith("_") or part.partition("[")[0] in _FRAME_NAMES for part in field_name.split(".")[1:]):
            raise PromptError(f"the prompt template may not read the private attribute {{{field_name}}}")
        return super().get_field(field_name, args, kwargs)

    def get_value(self, key: int | str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return the value of a name; raises MissingVariable if it was not given."""
        if isinstance(key, int) or key not in kwargs:
            raise _missing(str(key), kwargs, "; write {{ and }} for braces that are part of the text")
        return kwargs[key]


_FORMATTER = _Formatter()
_UNFILLED = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError)
"""Errors of Jinja's filters and operators for values that they do not take."""
_TOO_LARGE = (MemoryError, RecursionError, SyntaxError)
"""Errors of a Jinja template that is nested too deeply, calls itself, or makes a text that memory cannot hold."""


def _render(template: str, values: Mapping[str, Any]) -> str:
    from jinja2.exceptions import SecurityError, TemplateError, UndefinedError

    environment = _jinja()
    try:
        return environment.from_string(template).render(values)
    except SecurityError as error:
        raise PromptError(f"the prompt template may not do this: {first_line(error)}") from error
    except UndefinedError as error:
        missing = sorted(set(_jinja_variables(template)) - values.keys())
        if missing:
            raise _missing(", ".join(missing), values) from error
        raise _unfilled(error) from error
    except (*_UNFILLED, *_TOO_LARGE) as error:
        raise _unfilled(error) from error
    except (TemplateError, ValueError) as error:
        raise _malformed(error) from error


def _jinja_variables(template: str) -> tuple[str, ...]:
    from jinja2 import TemplateError, meta

    try:
        return tuple(sorted(meta.find_undeclared_variables(_jinja().parse(template))))
    except (TemplateError, *_TOO_LARGE) as error:
        raise _malformed(error) from error


@cache
def _jinja() -> "Environment":
    """Return the sandbox of all Jinja templates; it loads no other templates, and their text stays as it is."""
    from jinja2 import StrictUndefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    return ImmutableSandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)


def _missing(name: str, values: Mapping[str, Any], hint: str = "") -> MissingVariable:
    given = ", ".join(sorted(values)) or "none"
    return MissingVariable(f"the prompt template needs a value for {name or '{}'}, and was given {given}{hint}")


def _unfilled(error: Exception) -> PromptError:
    return PromptError(f"the prompt template cannot be filled: {first_line(error)}")


def _malformed(error: Exception) -> PromptError:
    return PromptError(f"the prompt template cannot be read: {first_line(error)}")
