"""One attempt asks too much of the gateway, or somebody without a token does; the others are answered meanwhile."""

import asyncio
import gzip
import json
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pytest
from gateway_site import PATIENCE, code, request, serving

from leyden.core.data.encoding.decompression import Inflater
from leyden.core.data.span import Span
from leyden.core.gateway.app import GatewayLimits
from leyden.core.gateway.calls import serve
from leyden.core.gateway.chat.request import MAX_STOP_CHARACTERS
from leyden.core.gateway.codec import Forced, Message, ToolDefinition
from leyden.core.gateway.codecs.chat_template import ChatTemplate, Steps, TemplateTooLong, limited
from leyden.core.gateway.http.body import BodyLimits
from leyden.core.gateway.limits.admission import RECENT_SECONDS, AdmissionControl, AdmissionLimits
from leyden.core.gateway.limits.held_bytes import HeldBytes
from leyden.core.gateway.limits.long_work import LongWork, RequestWork, WorkLimits
from leyden.core.gateway.limits.prompt_size import ELEMENTS, ELEMENTS_PER_TOKEN, MAX_UNCHECKED_BYTES, check_elements
from leyden.core.gateway.refusal import Refusal
from leyden.core.gateway.responses import state
from leyden.core.testing.byte_codec import ByteCodec

LONG = "a" * (WorkLimits().inline_bytes + 1)


class WatchedCodec(ByteCodec):
    """Knows on which threads it encodes, and how many prompts at once; `held` prompts wait for `go`."""

    def __init__(self) -> None:
        self.threads: list[int] = []
        self.peak = self._inside = 0
        self.entered, self.go = threading.Event(), threading.Event()
        self.go.set()
        self._lock = threading.Lock()

    def encode(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolDefinition] = (),
        forced: Forced | None = None,
        **how: Any,
    ) -> list[int]:
        ids = super().encode(messages, tools, forced, **how)
        with self._lock:
            self.threads.append(threading.get_ident())
            self._inside += 1
            self.peak = max(self.peak, self._inside)
        if len(ids) > len(LONG):
            self.entered.set()
            assert self.go.wait(PATIENCE)
        with self._lock:
            self._inside -= 1
        return ids

    async def has_entered(self) -> None:
        """Wait until a long prompt is being encoded."""
        assert await asyncio.to_thread(self.entered.wait, PATIENCE)


# --- Long prompts


async def test_a_long_prompt_is_encoded_off_the_loop_and_a_short_one_on_it() -> None:
    """The attempt sends megabytes, whose encoding takes seconds."""
    codec = WatchedCodec()
    async with serving(codec) as site:
        attempt = await site.attempt()
        for path, field in (
            ("chat/completions", "messages"),
            ("responses", "input"),
            ("responses/input_tokens", "input"),
        ):
            codec.threads.clear()
            for text in ("short", LONG):
                body = {"model": "m", field: [{"role": "user", "content": text}]}
                assert (await attempt.post(json.dumps(body).encode(), path)).status_code == 200
            short, long = codec.threads
            assert short == threading.get_ident() != long


async def test_a_prompt_that_cannot_fit_is_refused_before_it_is_encoded() -> None:
    """The attempt sends more text than the model could ever read."""
    codec = WatchedCodec()
    async with serving(codec, context_length=4096) as site:
        attempt = await site.attempt()
        for body in ({"messages": [{"role": "user", "content": "a" * 4096}]},
                     {"messages": [{"role": "user", "content": ""}] * 4096},
                     {"messages": [{"role": "user", "content": ""}],
                      "tools": [{"type": "function", "function": {"name": "f"}}] * 4096}):  # fmt: skip
            response = await attempt.post(json.dumps({"model": "m", **body}).encode())
            assert code(response) == (400, "context_length_exceeded")
        assert codec.threads == []
        # One that is even longer is not parsed either: this is no JSON.
        for path in ("chat/completions", "responses", "responses/input_tokens"):
            assert code(await attempt.post(b"a" * (2 << 20), path)) == (400, "context_length_exceeded")
            assert code(await attempt.post(b"a" * 4096, path)) == (400, "invalid_value")


async def test_others_are_answered_while_an_attempts_long_prompt_is_encoded() -> None:
    """The attempt sends several long prompts at once: one is encoded, the others wait, and nobody else does."""
    codec = WatchedCodec()
    codec.go.clear()
    async with serving(codec) as site:
        abuser, other = await site.attempt(), await site.attempt()
        long = [asyncio.create_task(abuser.chat(LONG)) for _ in range(5)]
        await codec.has_entered()
        assert (await other.chat()).status_code == 200
        assert (await abuser.chat()).status_code == 200
        assert (await other.post(b'{"model":"m","input":"hi"}', "responses/input_tokens")).status_code == 200
        assert codec.peak == 2
        assert site.gateway.admission.running <= 1  # the others do not even hold up an update of the weights
        codec.go.set()
        assert {response.status_code for response in await asyncio.gather(*long)} == {200}
        assert codec.peak == 2  # one of each kind


async def test_an_attempt_that_hangs_up_does_not_get_a_second_thread() -> None:
    """The attempt leaves its long prompts while they are encoded, and sends them again."""
    codec = WatchedCodec()
    codec.go.clear()
    async with serving(codec) as site:
        abuser = await site.attempt()
        first = await site.connect(request(abuser, LONG))
        await codec.has_entered()
        first.writer.close()
        await first.writer.wait_closed()
        again = asyncio.create_task(abuser.chat(LONG))
        assert (await (await site.attempt()).chat()).status_code == 200
        codec.go.set()
        assert (await again).status_code == 200
    assert codec.peak == 2  # never two long ones
    assert len(codec.threads) == 3


async def test_counting_tokens_takes_a_place_as_every_call_does() -> None:
    """The attempt asks for nothing but counts."""
    async with serving(limits=GatewayLimits(admission=AdmissionLimits(max_concurrent=1, max_waiting=1))) as site:
        site.hold = True
        attempt = await site.attempt()
        held = asyncio.create_task(attempt.chat())
        await site.in_flight(1)
        count = asyncio.create_task(attempt.post(b'{"model":"m","input":"hi"}', "responses/input_tokens"))
        async with asyncio.timeout(PATIENCE):
            while not site.gateway.admission.waiting:
                await asyncio.sleep(0.005)
        refused = await attempt.post(b'{"model":"m","input":"hi"}', "responses/input_tokens")
        assert code(refused) == (429, "too_many_waiting")
        await site.engine.close()
        await held
        assert (await count).status_code == 200


async def test_conversations_are_read_from_records_off_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The attempt keeps long conversations, and goes on from answers that were never given."""
    threads: list[int] = []
    read = state.turns_in

    def watched(spans: Sequence[Span]) -> dict[str, state.Turn]:
        threads.append(threading.get_ident())
        return read(spans)

    monkeypatch.setattr(state, "turns_in", watched)
    async with serving() as site:
        attempt = await site.attempt()
        for text in ("a", "a" * (1 << 15), "a" * (1 << 15)):
            said = {"model": "m", "input": text}
            assert (await attempt.post(json.dumps(said).encode(), "responses")).status_code == 200
            lost = {"model": "m", "input": "b", "previous_response_id": "resp_lost"}
            assert code(await attempt.post(json.dumps(lost).encode(), "responses"))[1] == "previous_response_not_found"
    assert [thread == threading.get_ident() for thread in threads] == [True, True, False]


async def test_stop_strings_have_an_end() -> None:
    """The attempt has every answer searched for megabytes."""
    async with serving() as site:
        attempt = await site.attempt()
        assert (await attempt.chat(stop=["a" * MAX_STOP_CHARACTERS])).status_code == 200
        assert code(await attempt.chat(stop=["b", "a" * (MAX_STOP_CHARACTERS + 1)])) == (400, "invalid_value")


def test_what_holds_more_values_than_any_context_needs_is_not_parsed() -> None:
    """The attempt sends millions of empty lists: hours of garbage collection in a small body."""
    most = ELEMENTS + ELEMENTS_PER_TOKEN * 100
    for mark in (b",", b"[", b"{"):
        check_elements(b" " * MAX_UNCHECKED_BYTES + mark * most, 100)
        with pytest.raises(Refusal) as error:
            check_elements(b" " * MAX_UNCHECKED_BYTES + mark * (most + 1), 100)
        assert (error.value.status, error.value.body.code) == (413, "request_too_large")


async def test_a_large_compressed_body_is_inflated_off_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The attempt sends kilobytes that stand for megabytes."""
    threads: list[int] = []
    push = Inflater.push

    def watched(self: Inflater, data: bytes) -> bytes:
        threads.append(threading.get_ident())
        return push(self, data)

    monkeypatch.setattr(Inflater, "push", watched)
    async with serving() as site:
        attempt = await site.attempt()
        for body, on_loop in ((b'{"model": "m"}', True), (json.dumps(list(range(20_000))).encode(), False)):
            threads.clear()
            packed = gzip.compress(body)
            assert (await attempt.post(packed, headers={"content-encoding": "gzip"})).status_code == 400
            assert {thread == threading.get_ident() for thread in threads} == {on_loop}


# --- CPU time


class Clocks:
    """Time, and CPU time of the thread that asks."""

    def __init__(self) -> None:
        self.now = self.cpu = 0.0

    def use(self, seconds: float) -> Callable[[], None]:
        def work() -> None:
            self.cpu += seconds

        return work


async def test_an_attempt_that_has_used_its_cpu_time_is_refused_until_it_has_some_again() -> None:
    """The attempt has its prompts encoded one after the other, without end."""
    clocks = Clocks()
    limits = WorkLimits(cpu_seconds=10.0, cpu_rate=0.5)
    long_work = LongWork(limits, clock=lambda: clocks.now, cpu_clock=lambda: clocks.cpu)

    async def long_call(attempt_id: str, seconds: float) -> None:
        with long_work.request(attempt_id) as work:
            await work.run(1 << 20, clocks.use(seconds))

    await long_call("abuser", 9.0)
    await long_call("abuser", 3.0)
    with pytest.raises(Refusal) as error:
        await long_call("abuser", 1.0)
    assert (error.value.status, error.value.headers) == (429, {"retry-after": "4"})
    await long_call("other", 1.0)
    with long_work.request("abuser") as work:
        await work.run(1, clocks.use(1.0))  # what is short costs nothing
    clocks.now = 4.5
    await long_call("abuser", 1.0)
    await long_work.aclose()


async def test_threads_take_shorter_turns_only_while_there_is_long_work() -> None:
    """The attempt's prompts are computed on in Python, beside the event loop."""
    before, during = sys.getswitchinterval(), list[float]()
    long_work = LongWork()
    with long_work.request("abuser") as work:
        await work.run(1 << 20, lambda: during.append(sys.getswitchinterval()))
    await long_work.aclose()
    assert during[0] < before == sys.getswitchinterval()


# --- Templates


class Tokenizer:
    """As much of one as a template needs."""

    special_tokens_map: ClassVar[dict[str, str]] = {}

    def __init__(self, template: str) -> None:
        self._template = template

    def get_chat_template(self, given: None, tools: object) -> str:
        return self._template


class TemplateCodec(ByteCodec):
    """Renders with a template of somebody's."""

    def __init__(self, template: str) -> None:
        self._template = ChatTemplate(Tokenizer(template))

    def encode(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolDefinition] = (),
        forced: Forced | None = None,
        **how: Any,
    ) -> list[int]:
        return list(self._template.render(messages, tools).encode())


ENDLESS = (
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% for a in range(99999) %}{% for b in range(99999) if false %}{% endfor %}{% endfor %}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{% for a in range(99) recursive %}{{ loop(range(99)) if loop.depth < 9 }}{% endfor %}",
    "{% set m = messages[0].content %}" + "".join(f"{{% for {c} in m %}}" for c in "abcdefgh") + "{% endfor %}" * 8,
)


@pytest.mark.parametrize("template", ENDLESS)
async def test_a_template_without_end_fails_and_others_are_answered(template: str) -> None:
    """The template of a policy has loops in loops, whose passes messages may decide."""
    limits = GatewayLimits(work=WorkLimits(inline_steps=1000, steps=20_000))
    async with serving(TemplateCodec(template), limits=limits) as site:
        attempt = await site.attempt()
        response = await attempt.chat("x" * 100)
        assert code(response) == (400, "invalid_value")
        assert "loops have too many iterations" in response.json()["error"]["message"]
        assert (await attempt.http.get("/healthz")).status_code == 200


def test_as_many_steps_as_are_allowed_can_be_taken() -> None:
    """Nobody attacks: loops that end do."""
    template = ChatTemplate(
        Tokenizer("{% for a in range(10) %}{% for b in range(9) if b %}{{ b }}{% endfor %}{% endfor %}")
    )
    with limited(Steps(10 + 90 + 80)):
        assert template.render([], []) == "12345678" * 10
    with limited(Steps(10 + 90 + 79)), pytest.raises(TemplateTooLong):
        template.render([], [])


async def test_a_template_that_needs_more_steps_than_the_loop_has_time_for_is_rendered_beside_it() -> None:
    """The messages are short, and the template makes much of them."""
    threads: list[int] = []
    template = ChatTemplate(Tokenizer("{% for a in range(50) %}{{ a }}{% endfor %}"))
    long_work = LongWork(WorkLimits(inline_steps=49, steps=50))

    def render() -> str:
        threads.append(threading.get_ident())
        return template.render([], [])

    with long_work.request("attempt") as work:
        assert await work.render(1, render) == "".join(map(str, range(50)))
    await long_work.aclose()
    assert [thread == threading.get_ident() for thread in threads] == [True, False]


# --- Memory and calls at once


async def test_an_attempt_holds_so_many_bytes_and_no_more() -> None:
    """The attempt has many large requests under way at once."""
    held = HeldBytes(10)
    with held.request("a") as first, held.request("b") as other, held.request("a") as second:
        first.add(6)
        second.add(4)
        with pytest.raises(Refusal) as error:
            second.add(1)
        assert (error.value.status, error.value.headers) == (429, {"retry-after": "1"})
        other.add(10)
    assert (held.of("a"), held.of("b")) == (0, 0)
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]}).encode()
    async with serving(limits=GatewayLimits(body=BodyLimits(max_bytes_per_attempt=2 * len(body)))) as site:
        site.hold = True
        abuser, other_attempt = await site.attempt(), await site.attempt()
        calls = [asyncio.create_task(abuser.post(body)) for _ in range(2)]
        await site.in_flight(2)
        assert code(await abuser.post(body)) == (429, "too_many_bytes")
        site.hold = False
        assert (await other_attempt.post(body)).status_code == 200
        await site.engine.close()
        await asyncio.gather(*calls)


async def entered(gate: AdmissionControl, attempt_id: str, calls: int) -> list["asyncio.Task[Any]"]:
    """Make calls that hold their places; return those that have one."""
    tasks = [asyncio.create_task(gate.acquire(attempt_id)) for _ in range(calls)]
    for _ in range(8):
        await asyncio.sleep(0)
    return [task for task in tasks if task.done()]


async def test_an_attempt_with_many_calls_at_once_has_a_fair_share_beside_others() -> None:
    """The attempt makes as many calls as it can, without end."""
    gate = AdmissionControl(AdmissionLimits(max_per_attempt=8, fair_share=2))
    alone = await entered(gate, "abuser", 20)
    assert len(alone) == 8
    await entered(gate, "quiet", 1)
    for slot in alone:
        gate.release(await slot)
    assert gate.running + gate.waiting == 1 + 12
    assert gate.running == 1 + 2
    assert len(await entered(gate, "busy", 8)) >= 2


async def test_others_that_are_between_two_calls_count_for_a_while() -> None:
    """The attempt makes its calls while the others think."""
    now = 0.0
    gate = AdmissionControl(AdmissionLimits(max_per_attempt=8, fair_share=2), clock=lambda: now)
    for slot in await entered(gate, "quiet", 1):
        gate.release(await slot)
    now = RECENT_SECONDS
    assert len(await entered(gate, "abuser", 20)) == 2
    now += 0.1
    assert len(await entered(gate, "abuser", 1)) == 0  # behind those that wait, which have places now
    assert gate.running == 8


async def test_a_call_with_many_choices_leaves_the_loop_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The attempt has 128 answers drawn in one call, by an engine that is never waited for."""
    monkeypatch.setattr(serve, "PACE_SECONDS", 0.0)
    async with serving() as site:
        attempt = await site.attempt()
        turns = 0
        counting = True

        def count() -> None:
            nonlocal turns
            turns += 1
            if counting:
                asyncio.get_running_loop().call_soon(count)

        many = asyncio.create_task(attempt.chat(n=128))
        async with asyncio.timeout(PATIENCE):
            while not site.engine.requests:
                await asyncio.sleep(0)
        before = turns
        count()
        async with asyncio.timeout(PATIENCE):
            while len(site.engine.log) < 128:
                await asyncio.sleep(0)
        counting = False
        assert turns - before >= 64
        assert len((await many).json()["choices"]) == 128


async def test_the_waiting_calls_of_one_attempt_leave_room_for_others() -> None:
    """The attempt fills the line of those that wait."""
    gate = AdmissionControl(
        AdmissionLimits(max_concurrent=1, max_per_attempt=1, max_waiting=4, max_waiting_per_attempt=2)
    )
    calls = [asyncio.create_task(gate.acquire("abuser")) for _ in range(4)]
    for _ in range(8):
        await asyncio.sleep(0)
    with pytest.raises(Refusal, match="Too many requests of this attempt"):
        await calls[3]
    other = asyncio.create_task(gate.acquire("other"))
    for _ in range(8):
        await asyncio.sleep(0)
    gate.release(await calls[0])
    gate.release(await other)
    for waiting in calls[1:3]:
        gate.release(await waiting)


def test_a_slot_that_was_never_needed_costs_nothing() -> None:
    """Nobody attacks."""
    with RequestWork(LongWork(), "attempt"):
        pass
