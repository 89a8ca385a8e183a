"""Images in requests of every dialect: real clients, the real gateway, and a tiny vision-language policy."""

import base64
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import anthropic
import httpx
import numpy as np
import openai
import pytest
from PIL import Image

from leyden.core.data import semconv
from leyden.core.data.identity import mint, new_key
from leyden.core.data.rollout import AttemptedRollout
from leyden.core.data.sampling import Sampling
from leyden.core.data.span import Span
from leyden.core.engine.embedded.engine import EmbeddedEngine
from leyden.core.engine.embedded.weights import load_model
from leyden.core.errors import GatewayError
from leyden.core.gateway.app import Gateway
from leyden.core.gateway.calls import images
from leyden.core.gateway.calls.served_policy import ServedPolicy
from leyden.core.gateway.codec import ImageFile
from leyden.core.gateway.codecs.huggingface import HuggingFaceCodec
from leyden.core.gateway.http.server import GatewayServer
from leyden.core.images.processor import ImageProcessor
from leyden.core.policy.model import PolicyModel
from leyden.core.policy.probe import recomputed
from leyden.core.store.memory import MemoryStore
from leyden.core.testing.byte_codec import ByteCodec
from leyden.core.testing.scripted_engine import ScriptedAnswer
from leyden.core.testing.scripted_gateway import scripted_gateway
from leyden.core.testing.tiny_vision import IMAGE_TOKENS, TEMPLATE, picture, save_tiny_vision_policy
from leyden.core.trajectory.assemble import assemble
from leyden.core.trajectory.select import Selector

pytestmark = pytest.mark.integration

PLAIN = Sampling()
RED, BLUE = (220, 20, 20), (20, 20, 220)
QUESTION = "Which colour is this?"
NO_IMAGES = "This policy takes no images. Use a vision-language model as the policy, or describe the image in text."


def encoded(colour: tuple[int, int, int]) -> str:
    return base64.b64encode(picture(colour)).decode()


def url(colour: tuple[int, int, int]) -> str:
    return f"data:image/png;base64,{encoded(colour)}"


def chat_content(*urls: str) -> list[dict[str, Any]]:
    parts = [{"type": "image_url", "image_url": {"url": one, "detail": "low"}} for one in urls]
    return [{"type": "text", "text": QUESTION}, *parts]


def chat_messages(*urls: str) -> Any:
    return [{"role": "system", "content": "Answer."}, {"role": "user", "content": chat_content(*urls)}]


def anthropic_image(colour: tuple[int, int, int]) -> dict[str, Any]:
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": encoded(colour)}}


@dataclass(frozen=True)
class Site:
    """A gateway with a vision-language policy, and one open attempt."""

    base_url: str
    store: MemoryStore
    rollout: AttemptedRollout
    engine: EmbeddedEngine

    def openai(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=self.base_url, api_key="the agent's own", max_retries=0)

    def anthropic(self) -> anthropic.AsyncAnthropic:
        root = self.base_url.removesuffix("/v1")
        return anthropic.AsyncAnthropic(base_url=root, api_key="the agent's own", max_retries=0)

    async def spans(self) -> list[Span]:
        return (await self.store.query_spans(self.rollout.rollout_id)).items

    async def calls(self) -> list[Span]:
        return [span for span in await self.spans() if semconv.CALL_ID in span.attributes]

    async def files(self) -> list[bytes]:
        return [span.attributes[semconv.IMAGE_DATA] for span in await self.spans() if span.name == images.NAME]  # pyright: ignore[reportReturnType]  # bytes


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vision")
    save_tiny_vision_policy(folder)
    return folder


@asynccontextmanager
async def site(policy: Path, sampling: Sampling = PLAIN) -> AsyncGenerator[Site]:
    store, key = MemoryStore(), new_key()
    engine = EmbeddedEngine(load_model(policy), name="tiny", tokenizer=str(policy))
    await engine.start()
    served = ServedPolicy(name="policy", engine=engine, codec=HuggingFaceCodec(policy), sampling=sampling)
    server = GatewayServer(Gateway(store, served, key).app)
    root = await server.start()
    rollout = await store.start_rollout("a task", mode="train")
    token = mint(key, rollout.rollout_id, rollout.attempt.attempt_id)
    try:
        yield Site(f"{root}/a/{token}/v1", store, rollout, engine)
    finally:
        await server.stop()
        await engine.close()
        await store.close()


async def test_chat_completions_with_images_are_answered_recorded_and_trained_exactly(policy: Path) -> None:
    async with site(policy) as run, run.openai() as client:
        plain = await client.chat.completions.create(model="m", messages=chat_messages(url(RED)), max_tokens=5)
        stream = await client.chat.completions.create(
            model="m", messages=chat_messages(url(BLUE), url(RED)), max_tokens=5, stream=True
        )
        streamed = [chunk async for chunk in stream]
        text_only = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": QUESTION}], max_tokens=5
        )
        calls, spans, files = await run.calls(), await run.spans(), await run.files()
    assert plain.usage is not None and text_only.usage is not None and streamed
    first, second, third = calls
    named = json.loads(str(first.attributes[semconv.PROMPT_IMAGES]))
    assert [tokens for _, _, tokens in named] == [IMAGE_TOKENS]
    assert plain.usage.prompt_tokens == first.attributes[semconv.INPUT_TOKENS]
    assert len(json.loads(str(second.attributes[semconv.PROMPT_IMAGES]))) == 2
    assert semconv.PROMPT_IMAGES not in third.attributes
    assert files == [picture(RED), picture(BLUE)], "each file is recorded once"
    recorded = json.loads(str(first.attributes[semconv.INPUT_MESSAGES]))
    assert recorded[1]["content"][1]["image_url"] == {"url": f"sha256:{named[0][0]}", "detail": "low"}
    assert "base64" not in str([span.attributes for span in calls])

    trajectory = assemble(run.rollout, run.rollout.attempt, spans, Selector())
    assert (len(trajectory.transitions), trajectory.untrained) == (3, {})
    assert np.abs(recomputed(PolicyModel.load(policy), trajectory.transitions)).max() <= 1e-5


async def test_a_placeholder_that_the_policy_samples_is_a_token_without_an_image(policy: Path) -> None:
    """It is in no text, so the conversation goes on; engine and trainer read it alike."""
    token = ImageProcessor(str(policy)).token
    async with site(policy, Sampling(logit_bias=((token, 100.0),))) as run, run.openai() as client:
        first = await client.chat.completions.create(model="m", messages=chat_messages(url(RED)), max_tokens=3)
        more: Any = [
            {"role": "assistant", "content": first.choices[0].message.content},
            {"role": "user", "content": "And?"},
        ]
        await client.chat.completions.create(model="m", messages=[*chat_messages(url(RED)), *more], max_tokens=3)
        spans = await run.spans()
    assert "<image>" not in (first.choices[0].message.content or "")
    trajectory = assemble(run.rollout, run.rollout.attempt, spans, Selector())
    assert [list(one.response_ids) for one in trajectory.transitions] == [[token] * 3] * 2
    assert [len(one.images) for one in trajectory.transitions] == [1, 1]
    assert np.abs(recomputed(PolicyModel.load(policy), trajectory.transitions)).max() <= 1e-5


async def test_the_responses_api_takes_images_and_goes_on_from_them(policy: Path) -> None:
    part = {"type": "input_image", "image_url": url(RED), "detail": "auto"}
    asked: Any = [{"role": "user", "content": [{"type": "input_text", "text": QUESTION}, part]}]
    async with site(policy) as run, run.openai() as client:
        first = await client.responses.create(model="m", input=asked, max_output_tokens=16)
        second = await client.responses.create(
            model="m", input="And now?", previous_response_id=first.id, max_output_tokens=16
        )
        listed = await client.responses.input_items.list(first.id)
        counted = await client.responses.input_tokens.count(model="m", input=asked)
        files, calls = await run.files(), await run.calls()
    assert second.status in ("completed", "incomplete")
    assert files == [picture(RED)]
    assert all(semconv.PROMPT_IMAGES in call.attributes for call in calls)
    (item,) = [one.model_dump() for one in listed.data]
    assert item["content"][1]["image_url"] == url(RED)
    assert first.usage is not None and counted.input_tokens == first.usage.input_tokens


async def test_the_messages_api_takes_images_also_in_results_of_tools(policy: Path) -> None:
    use: Any = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "is_error": True, "content": [anthropic_image(BLUE)]}
    messages: Any = [
        {"role": "user", "content": [anthropic_image(RED), {"type": "text", "text": QUESTION}]},
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [result, {"type": "text", "text": "Well?"}]},
    ]
    async with site(policy) as run, run.anthropic() as client:
        answer = await client.messages.create(model="m", max_tokens=4, messages=messages)
        counted = await client.messages.count_tokens(model="m", messages=messages)
        (call,), files = await run.calls(), await run.files()
    assert answer.usage.input_tokens == counted.input_tokens
    assert files == [picture(RED), picture(BLUE)]
    user, _, tool, _ = json.loads(str(call.attributes[semconv.INPUT_MESSAGES]))
    assert [part["type"] for part in user["content"]] == ["image_url", "text"]
    assert [part["type"] for part in tool["content"]] == ["text", "image_url"]
    assert tool["content"][0]["text"] == "Error: "


REFUSED: list[tuple[str, str]] = [
    ("https://example.com/a.png", "is not fetched; send the file as a data URL"),
    ("data:image/png;base64,AAAA", "it is not an image file in one of the formats PNG, JPEG, WEBP, GIF"),
    (f"data:image/png;base64,{encoded(RED)[:-60]}", "its file is broken"),
]


@pytest.mark.parametrize(("bad", "why"), REFUSED)
async def test_an_image_that_cannot_be_read_is_refused_in_every_dialect(policy: Path, bad: str, why: str) -> None:
    async with site(policy) as run:
        async with run.openai() as client:
            with pytest.raises(openai.BadRequestError, match=why) as caught:
                await client.chat.completions.create(model="m", messages=chat_messages(url(BLUE), bad))
            assert caught.value.param == "messages"
            assert "Image 2 of the request cannot be read" in str(caught.value)
            part: Any = {"role": "user", "content": [{"type": "input_image", "image_url": bad, "detail": "auto"}]}
            with pytest.raises(openai.BadRequestError, match=why) as caught:
                await client.responses.create(model="m", input=[part])
            assert caught.value.param == "input"
        async with run.anthropic() as client:
            source = (
                {"type": "url", "url": bad}
                if bad.startswith("http")
                else {"type": "base64", "media_type": "image/png", "data": bad.partition(",")[2]}
            )
            block: Any = {"type": "image", "source": source}
            with pytest.raises(anthropic.BadRequestError, match=why):
                await client.messages.create(model="m", max_tokens=4, messages=[{"role": "user", "content": [block]}])
        calls, files = await run.calls(), await run.files()
    assert {str(call.attributes[semconv.NOT_TRAINED]) for call in calls} == {"refused"}
    assert len(calls) == 3 and not files
    assert all(len(str(call.attributes[semconv.INPUT_MESSAGES])) < 400 for call in calls), "no file is recorded"


async def test_text_that_stands_for_an_image_and_too_many_images_are_refused(policy: Path) -> None:
    async with site(policy) as run, run.openai() as client:
        marked = [{"role": "user", "content": [{"type": "text", "text": "an <image>"}, *chat_content(url(RED))[1:]]}]
        with pytest.raises(openai.BadRequestError, match="The text of the messages contains '<image>'"):
            await client.chat.completions.create(model="m", messages=marked)  # pyright: ignore[reportArgumentType]  # parts
        with pytest.raises(openai.BadRequestError, match="maximum context length is 512 tokens") as caught:
            await client.chat.completions.create(model="m", messages=chat_messages(*[url(RED)] * 40))
        assert caught.value.code == "context_length_exceeded"
        # without an image, the mark is text like any other
        plain = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "an <image>"}], max_tokens=2
        )
        assert plain.choices


async def test_a_large_image_is_no_long_prompt(policy: Path) -> None:
    """A file of more bytes than the context has tokens is read: it has as many tokens as any other."""
    noise = np.random.default_rng(0).integers(0, 256, (900, 900, 3), dtype=np.uint8)
    file = BytesIO()
    Image.fromarray(noise).save(file, "PNG")
    assert len(file.getvalue()) > 2 << 20
    large = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
    async with site(policy) as run, run.openai() as client:
        answer = await client.chat.completions.create(model="m", messages=chat_messages(large), max_tokens=2)
        assert answer.usage is not None and answer.usage.prompt_tokens < 100
        assert await run.files() == [file.getvalue()]


async def test_a_retry_gets_the_same_answer_and_records_nothing_again(policy: Path) -> None:
    body = {"model": "m", "messages": chat_messages(url(RED)), "max_tokens": 4}
    async with site(policy) as run, httpx.AsyncClient() as http:
        first = await http.post(f"{run.base_url}/chat/completions", json=body)
        again = await http.post(f"{run.base_url}/chat/completions", json=body, headers={"x-stainless-retry-count": "1"})
        assert first.json() == again.json()
        assert len(await run.calls()) == 1 and len(await run.files()) == 1


async def test_a_text_policy_refuses_images_in_one_line_in_every_dialect() -> None:
    codec = ByteCodec()
    async with scripted_gateway(lambda _: ScriptedAnswer(ids=codec.answer("red"))) as gateway:
        attempt = await gateway.open_attempt()
        async with openai.AsyncOpenAI(base_url=attempt.base_url, api_key="key", max_retries=0) as client:
            for bad in (url(RED), "https://example.com/a.png", "data:image/png;base64," + "A" * (3 << 20)):
                with pytest.raises(openai.BadRequestError) as caught:
                    await client.chat.completions.create(model="m", messages=chat_messages(bad))
                error: Any = caught.value.body
                assert error["message"] == NO_IMAGES
                assert (caught.value.param, caught.value.code) == ("messages", "unsupported_parameter")
            part: Any = {"role": "user", "content": [{"type": "input_image", "image_url": url(RED), "detail": "auto"}]}
            with pytest.raises(openai.BadRequestError, match=NO_IMAGES):
                await client.responses.create(model="m", input=[part])
        root = attempt.base_url.removesuffix("/v1")
        async with anthropic.AsyncAnthropic(base_url=root, api_key="key", max_retries=0) as client:
            asked: Any = [{"role": "user", "content": [anthropic_image(RED)]}]
            with pytest.raises(anthropic.BadRequestError) as refused:
                await client.messages.create(model="m", max_tokens=4, messages=asked)
            answer: Any = refused.value.body
            assert answer["error"] == {"type": "invalid_request_error", "message": f"messages: {NO_IMAGES}"}
            with pytest.raises(anthropic.BadRequestError, match=NO_IMAGES):
                await client.messages.count_tokens(model="m", messages=asked)
        assert not gateway.engine.requests


def test_a_template_that_renders_only_parts_gets_parts(policy: Path, tmp_path: Path) -> None:
    for path in policy.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    start = TEMPLATE.index("{% if message.content is string %}")
    only_parts = TEMPLATE[:start] + TEMPLATE[start:].replace(
        "{% if message.content is string %}{{ message.content }}{% else -%}", "{% if true -%}", 1
    )
    (tmp_path / "chat_template.jinja").write_text(only_parts)
    messages = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": None}]
    whole, parts = HuggingFaceCodec(policy), HuggingFaceCodec(tmp_path)
    assert parts.encode(messages) == whole.encode(messages)
    assert QUESTION in parts.decode(parts.encode(messages))


def test_a_template_that_leaves_images_out_is_refused(policy: Path, tmp_path: Path) -> None:
    for path in policy.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE.replace("'image' %}<image>", "'image' %}"))
    codec = HuggingFaceCodec(tmp_path)
    ids = codec.encode([{"role": "user", "content": chat_content(url(RED))}])
    file = ImageFile(digest="0" * 64, data=picture(RED), tokens=IMAGE_TOKENS)
    with pytest.raises(GatewayError, match="leaves out an image"):
        codec.place_images(ids, [file])
