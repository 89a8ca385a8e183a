"""The endpoint of the Model Context Protocol: streamable HTTP, without sessions, by the official package."""

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import mcp.types as protocol
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from leyden.console.http.access import MCP_PATH
from leyden.console.mcp.tools import TOOLS, WARNING, answer, schema_of
from leyden.console.plain import one_line
from leyden.console.run_view import RunViews
from leyden.core.errors import LeydenError

ABOUT = (
    "Training runs of Leyden, which trains the language model inside an agent. To find out why a run does not learn, "
    "call run_health, then why_not_trained, then rollouts and rollout."
)

log = logging.getLogger(__name__)


class McpEndpoint:
    """Answers MCP clients with the tools. Each request is answered by itself, so a console may restart in between."""

    def __init__(self, views: RunViews, version: str) -> None:
        self._views = views
        server: Server[Any, Any] = Server("leyden", version=version, instructions=ABOUT)
        server.list_tools()(self._list)
        server.call_tool(validate_input=False)(self._call)
        self._manager = StreamableHTTPSessionManager(app=server, json_response=True, stateless=True)

    def route(self) -> Route:
        """Return the route; only POST requests exist, as no server-sent stream has anything to say."""
        return Route(MCP_PATH, self, methods=["POST"])

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Context manager: requests can be answered inside the block."""
        async with self._manager.run():
            yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        await self._manager.handle_request(scope, receive, send)

    async def _list(self) -> list[protocol.Tool]:
        return [
            protocol.Tool(
                name=name,
                description=tool.description + WARNING,
                inputSchema=schema_of(tool),
                annotations=protocol.ToolAnnotations(readOnlyHint=True, destructiveHint=False, openWorldHint=False),
            )
            for name, tool in TOOLS.items()
        ]

    async def _call(self, name: str, arguments: dict[str, Any]) -> protocol.CallToolResult:
        try:
            text, is_error = await answer(self._views, name, arguments), False
        except (LeydenError, OSError, ValueError) as error:
            text, is_error = one_line(error), True
        except Exception as error:  # one tool that fails must not end the connection
            log.exception("the tool %s failed", name)
            text, is_error = one_line(RuntimeError(f"{type(error).__name__}: {error}")), True
        return protocol.CallToolResult(content=[protocol.TextContent(type="text", text=text)], isError=is_error)
