"""`Route`: which model calls go to which policy, and which to the agent's own provider. Knows nothing of HTTP."""

from collections.abc import Iterable
from fnmatch import fnmatchcase

import msgspec

from leyden.core.errors import UsageError

POLICY = "policy"
"""The name of the policy that calls go to when no route says otherwise."""
PROVIDER = "provider"
"""Where a call goes that no policy answers: to the agent's own provider, untouched."""

ANSWERED_BY = "answered_by"
"""Key in a rollout's metadata: the name of the policy that answers its calls where no route says otherwise."""


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """Sends the model calls that fit all patterns to `to`; patterns are globs, `*` fits everything."""

    host: str = "*"
    """Of the URL that the agent calls, in lower case."""
    path: str = "*"
    """Of that URL, for example `/v1/chat/completions`."""
    model: str = "*"
    """As the body names it."""
    agent: str = "*"
    """As the framework names it; a call by nobody in particular has the empty name."""
    node: str = "*"
    """Of the agent's graph, where the framework has one; likewise."""
    to: str = POLICY
    """A policy's name, or `provider`."""

    def fits(self, *, host: str, path: str, model: str | None, agent: str, node: str = "") -> bool:
        """Whether a call fits; a `model` of None is not known, and fits every pattern."""
        return (
            fnmatchcase(host, self.host)
            and fnmatchcase(path, self.path)
            and fnmatchcase(agent, self.agent)
            and fnmatchcase(node, self.node)
            and (model is None or fnmatchcase(model, self.model))
        )

    @property
    def reads_model(self) -> bool:
        """Whether the body must be looked into."""
        return self.model != "*"

    @property
    def fits_all(self) -> bool:
        """Whether there is no call that does not fit."""
        return {self.host, self.path, self.model, self.agent, self.node} == {"*"}


KEYS = Route.__struct_fields__


def parse_route(text: str) -> Route:
    """Read a route such as `agent=judge,to=provider`. Raises UsageError that names what is wrong."""
    values: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise UsageError(f"route {text!r}: {part.strip()!r} is not of the form key=value")
        if key not in KEYS:
            raise UsageError(f"route {text!r}: there is no {key!r}; a route has {', '.join(KEYS)}")
        if key in values:
            raise UsageError(f"route {text!r} gives {key!r} twice")
        if not value:
            raise UsageError(f"route {text!r} gives {key!r} no value")
        values[key] = value
    if "to" not in values:
        raise UsageError(f"route {text!r} does not say where to: add to=provider or to=<policy>")
    if "host" in values:
        values["host"] = values["host"].lower()
    return Route(**values)


def parse_routes(texts: Iterable[str]) -> tuple[Route, ...]:
    """Read several routes; the first that fits a call decides. Raises UsageError."""
    return tuple(parse_route(text) for text in texts)


def first_fitting(
    routes: Iterable[Route], *, host: str, path: str, model: str | None, agent: str, node: str = ""
) -> str:
    """Return the policy's name, or `provider`, that a call goes to.

    Where the model is not known (None) and a route asks for it, the call is claimed: it goes to the usual policy
    rather than, by mistake, to a provider.
    """
    for route in routes:
        if route.fits(host=host, path=path, model=model, agent=agent, node=node):
            return POLICY if route.reads_model and model is None else route.to
    return POLICY
