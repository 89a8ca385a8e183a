"""`Route`: decides which model calls go to which policy, and which to the agent's own provider.

Does not read HTTP requests: the caller passes the host, path, model, agent and node of a call.
"""

from collections.abc import Iterable
from fnmatch import fnmatchcase

import msgspec

from leyden.core.errors import UsageError

POLICY = "policy"
"""Name of the policy that calls go to when no route matches."""
PROVIDER = "provider"
"""Target of calls that no policy answers: they go to the agent's own provider, unchanged."""

ANSWERED_BY = "answered_by"
"""Key of a rollout's metadata: name of the policy that answers calls that no route matches."""


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """Sends model calls that match all patterns to `to`. Patterns are globs; `*` matches everything."""

    host: str = "*"
    """Host of the URL that the agent calls; case does not matter."""
    path: str = "*"
    """Path of that URL, for example `/v1/chat/completions`."""
    model: str = "*"
    """Model name in the body of the request."""
    agent: str = "*"
    """Name of the agent in the framework; a call outside of any named agent has the empty name."""
    node: str = "*"
    """Node of the agent's graph, where the framework has one; otherwise the empty name."""
    to: str = POLICY
    """Name of a policy, `provider`, or a provider's model that the gateway calls, such as `anthropic/claude-x`."""

    def fits(self, *, host: str, path: str, model: str | None, agent: str, node: str = "") -> bool:
        """Whether a call matches; a `model` of None is unknown, and matches every pattern."""
        return (
            fnmatchcase(host.lower(), self.host.lower())
            and fnmatchcase(path, self.path)
            and fnmatchcase(agent, self.agent)
            and fnmatchcase(node, self.node)
            and (model is None or fnmatchcase(model, self.model))
        )

    @property
    def reads_model(self) -> bool:
        """Whether the route needs the model name from the body of the request."""
        return self.model != "*"

    @property
    def fits_all(self) -> bool:
        """Whether every call matches."""
        return {self.host, self.path, self.model, self.agent, self.node} == {"*"}


KEYS = Route.__struct_fields__


def parse_route(text: str) -> Route:
    """Parse a route such as `agent=judge,to=provider`. Raises UsageError with the reason."""
    values: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise UsageError(f"route {text!r}: {part.strip()!r} is not of the form key=value")
        if key not in KEYS:
            raise UsageError(f"route {text!r}: unknown key {key!r}; a route has {', '.join(KEYS)}")
        if key in values:
            raise UsageError(f"route {text!r} gives {key!r} twice")
        if not value:
            raise UsageError(f"route {text!r} gives {key!r} no value")
        values[key] = value
    if "to" not in values:
        raise UsageError(f"route {text!r} has no destination: add to=provider, to=<policy> or to=PROVIDER/MODEL")
    if "host" in values:
        values["host"] = values["host"].lower()
    return Route(**values)


def parse_routes(texts: Iterable[str]) -> tuple[Route, ...]:
    """Parse several routes, of which the first that matches a call decides. Raises UsageError."""
    return tuple(parse_route(text) for text in texts)


def first_fitting(
    routes: Iterable[Route], *, host: str, path: str, model: str | None, agent: str, node: str = ""
) -> str:
    """Return where a call goes: the name of a policy, or `provider`.

    Where the model is unknown (None) and the first matching route needs it, the call goes to the policy `POLICY`. A
    call must not reach a provider by mistake.
    """
    for route in routes:
        if route.fits(host=host, path=path, model=model, agent=agent, node=node):
            return POLICY if route.reads_model and model is None else route.to
    return POLICY
