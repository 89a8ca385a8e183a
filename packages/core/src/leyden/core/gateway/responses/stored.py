"""Stored responses: the endpoints of the Responses API that read, list and delete an attempt's stored responses."""

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias
from urllib.parse import parse_qs

import msgspec
from starlette.types import Scope

from leyden.core.gateway.call_identity import Origin
from leyden.core.gateway.refusal import Refusal, invalid, unsupported
from leyden.core.gateway.responses.format import billed
from leyden.core.gateway.responses.items import Item
from leyden.core.gateway.responses.state import Conversations, Turn

MAX_LISTED = 100

Read: TypeAlias = Callable[[Scope, Origin], Awaitable[bytes]]
"""Function that returns the JSON response to a request of an open attempt; raises Refusal."""


class StoredResponses:
    """Endpoints for the stored responses in `conversations`; `paths` has the function of each path and method."""

    def __init__(self, conversations: Conversations) -> None:
        self._conversations = conversations
        self.paths: Mapping[str, Mapping[str, Read]] = {
            "/responses/{response_id}": {"GET": self._retrieve, "DELETE": self._delete},
            "/responses/{response_id}/input_items": {"GET": self._input_items},
            "/responses/{response_id}/cancel": {"POST": self._cancel},
        }

    async def _retrieve(self, scope: Scope, origin: Origin) -> bytes:
        turn = await self._find_turn(scope, origin)
        if _query(scope).get("stream", "false").lower() in ("true", "1"):
            raise unsupported("stream", "is not available for a response that is already there.")
        return msgspec.json.encode(billed(turn.answer))

    async def _delete(self, scope: Scope, origin: Origin) -> bytes:
        turn = await self._find_turn(scope, origin)
        await self._conversations.delete(origin, turn)
        return msgspec.json.encode({"id": turn.id, "object": "response.deleted", "deleted": True})

    async def _input_items(self, scope: Scope, origin: Origin) -> bytes:
        turn = await self._find_turn(scope, origin)
        return msgspec.json.encode(_page(await self._conversations.input_items(origin, turn), _query(scope)))

    async def _cancel(self, scope: Scope, origin: Origin) -> bytes:
        await self._find_turn(scope, origin)
        raise Refusal(400, "Cannot cancel a synchronous response.")

    async def _find_turn(self, scope: Scope, origin: Origin) -> Turn:
        response_id: str = scope["path_params"]["response_id"]
        turn = await self._conversations.find(origin, response_id)
        if turn is None:
            raise Refusal(404, f"Response with id '{response_id}' not found.")
        return turn


def _query(scope: Scope) -> dict[str, str]:
    query: bytes = scope["query_string"]
    return {key: values[-1] for key, values in parse_qs(query.decode("latin-1")).items()}


def _page(items: list[Item], query: Mapping[str, str]) -> dict[str, object]:
    """Return the requested page of a list of items; newest first unless `order` is `asc`.

    Raises Refusal for an invalid `limit` or `order`, or if `after` is not an item of the list.
    """
    limit, order, after = query.get("limit", "20"), query.get("order", "desc"), query.get("after")
    if not limit.isdecimal() or not 1 <= int(limit) <= MAX_LISTED:
        raise invalid(f"'limit' must be between 1 and {MAX_LISTED}, not {limit}.", "limit")
    if order not in ("asc", "desc"):
        raise invalid(f"Invalid value: '{order}'. Supported values are: 'asc' and 'desc'.", "order")
    ordered = items if order == "asc" else items[::-1]
    ids: list[str] = [item["id"] for item in ordered]
    if after is not None and after not in ids:
        raise invalid(f"There is no item '{after}' here to list those after.", "after")
    start = 0 if after is None else ids.index(after) + 1
    page = ordered[start : start + int(limit)]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": start + len(page) < len(ordered),
    }
