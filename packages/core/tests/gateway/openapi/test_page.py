"""The page says what the gateway does: every route, every method, and the bodies that it reads."""

import json
import re
from typing import Any

import httpx
import msgspec
import pytest
from starlette.routing import Route, Router

from leyden.core.data.identity import new_key
from leyden.core.gateway.anthropic import request as messages_request
from leyden.core.gateway.app import Gateway
from leyden.core.gateway.calls.served_policy import ServedPolicy
from leyden.core.gateway.chat import request as chat_request
from leyden.core.gateway.completions import request as completions_request
from leyden.core.gateway.openapi import page
from leyden.core.gateway.openapi.page import openapi_document
from leyden.core.gateway.refusal import Refusal
from leyden.core.gateway.responses import request as responses_request
from leyden.core.store.memory import MemoryStore
from leyden.core.testing.byte_codec import ByteCodec
from leyden.core.testing.scripted_engine import ScriptedEngine
from leyden.core.testing.scripted_gateway import scripted_gateway

PAGE: dict[str, Any] = msgspec.json.decode(openapi_document())
METHODS = ("get", "post", "put", "patch", "delete")
USER = [{"role": "user", "content": "hi"}]


def test_every_route_of_the_application_is_on_the_page_and_the_other_way_round() -> None:
    policy = ServedPolicy(name="policy", engine=ScriptedEngine([]), codec=ByteCodec())
    app = Gateway(MemoryStore(), policy, new_key()).app
    assert isinstance(app, Router)
    routes = {route.path for route in app.routes if isinstance(route, Route)}
    routes = {path for path in routes if not path.endswith("/{path:path}")}
    assert {path.replace("{name:path}", "{name}") for path in routes} == set(PAGE["paths"])


@pytest.mark.integration
async def test_exactly_the_methods_of_the_page_exist() -> None:
    async with scripted_gateway([]) as gateway, httpx.AsyncClient(base_url=gateway.url) as http:
        attempt = await gateway.open_attempt()
        headers = {"authorization": f"Bearer {attempt.token}"}
        for path, known in PAGE["paths"].items():
            url = path.format(token=attempt.token, response_id="resp_x", name="policy")
            for method in METHODS:
                answer = await http.request(method, url, headers=headers)
                error: dict[str, Any] = answer.json()["error"] if answer.status_code >= 400 else {}
                assert (answer.status_code == 405) == (method not in known), f"{method} {path}: {error}"
                assert error.get("code") != "unknown_url"
                if answer.status_code == 405:
                    allowed = answer.headers["allow"].lower().split(", ")
                    assert set(allowed) == set(known) - {"parameters"}


@pytest.mark.integration
async def test_the_page_is_served_to_anybody_and_holds_no_secret() -> None:
    async with scripted_gateway([]) as gateway, httpx.AsyncClient(base_url=gateway.url) as http:
        attempt = await gateway.open_attempt()
        answer = await http.get(page.PATH)
        assert answer.json() == PAGE
        assert attempt.token not in answer.text
        assert attempt.rollout_id not in answer.text


def test_every_reference_leads_somewhere() -> None:
    references: list[str] = re.findall(r'"\$ref":"#/([^"]+)"', openapi_document().decode())
    assert references
    for reference in references:
        node: Any = PAGE
        for part in reference.split("/"):
            node = node[part]


def test_the_fields_of_the_page_are_those_that_are_accepted() -> None:
    schemas = PAGE["components"]["schemas"]
    assert set(schemas["ChatBody"]["properties"]) == chat_request.KNOWN
    assert set(schemas["CompletionsBody"]["properties"]) == completions_request.KNOWN
    assert set(schemas["ResponsesBody"]["properties"]) == responses_request.KNOWN
    assert set(schemas["MessagesBody"]["properties"]) == messages_request.KNOWN
    assert set(schemas["MessagesCountBody"]["properties"]) == messages_request.KNOWN_OF_COUNT


@pytest.mark.parametrize("field", ["temperature", "top_p", "max_tokens", "max_completion_tokens", "n", "seed"])
def test_numbers_are_accepted_up_to_the_limits_on_the_page_and_no_further(field: str) -> None:
    schema = PAGE["components"]["schemas"]["ChatBody"]["properties"][field]["anyOf"][0]
    beyond = {"minimum": -1, "maximum": 1}
    for limit in beyond.keys() & schema.keys():
        body = {"model": "m", "messages": USER, field: schema[limit]}
        chat_request.parse_chat(msgspec.json.encode(body))
        with pytest.raises(Refusal) as error:
            chat_request.parse_chat(json.dumps(body | {field: schema[limit] + beyond[limit]}).encode())
        assert error.value.body.param == field
