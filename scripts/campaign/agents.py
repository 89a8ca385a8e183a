"""The agents of one rollout: each makes its calls, continues from the answers, and reports what became of each call.

They set the current caller as an adapter would, and do nothing else for the gateway.
"""

import asyncio
import threading
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import msgspec

from campaign.clients import HEAD, Lost, Refused, Request, Send
from campaign.dialects.conversation import Answer, Conversation, Document
from campaign.dialects.table import DIALECTS
from campaign.plan import CUTS, CallPlan, Mark, RolloutPlan, Turn, span_of
from leyden.core.tracing.context import Caller, OpenAttempt, set_caller

PROVIDERS = {"messages": "https://api.anthropic.com/v1"}
OPENAI = "https://api.openai.com/v1"
"""The provider of all other dialects."""
TRIES = 4
OWN_RETRIES = 2
"""How often the providers' clients try again by themselves, their default."""

Result: TypeAlias = Literal["answered", "unanswered", "refused", "failed"]


class Outcome(msgspec.Struct, frozen=True, kw_only=True, tag="outcome"):
    """What became of a call, as its agent saw it."""

    mark: Mark
    result: Result
    tries: int = 1
    """How often the agent sent it, besides what its client did by itself."""
    answer: Answer | None = None
    status: int | None = None
    """Of a refusal."""
    error: str | None = None
    used: int | None = None
    """The choice that the next call repeats, where there is one."""


class _HungUp(Exception):
    """The plan has the client close the connection now."""


@dataclass(slots=True)
class AgentAtWork:
    """One agent of one rollout, with a conversation in each dialect."""

    plan: RolloutPlan
    attempt: OpenAttempt
    clients: Mapping[str, Send]
    on_outcome: Callable[[Outcome], None]
    _conversations: dict[tuple[str, str], Conversation] = field(default_factory=dict[tuple[str, str], Conversation])

    async def work(self, turns: tuple[Turn, ...]) -> None:
        """Take every turn, with other agents inside it."""
        for turn in turns:
            caller = _caller(turn.call, None)
            set_caller(caller)
            for call in turn.inside:
                other = _caller(call, caller)
                set_caller(other)
                await self._make(call)
                other.ended.set()
            await self._make(turn.call)
            caller.ended.set()

    async def _make(self, call: CallPlan) -> None:
        try:
            outcome = await self._request_until_answered(call)
        except Exception as error:
            outcome = Outcome(mark=call.mark, result="failed", error=f"{type(error).__name__}: {error}")
        self.on_outcome(outcome)

    async def _request_until_answered(self, call: CallPlan) -> Outcome:
        conversation = self._conversation(call)
        body = conversation.body(call)
        for tried in range(TRIES):
            try:
                answer = await self._request(call, conversation, body, tried)
            except Refused as refusal:
                as_planned = call.fault == "refused"
                result: Result = "refused" if as_planned else "failed"
                return Outcome(mark=call.mark, result=result, status=refusal.status, error=str(refusal))
            except (Lost, _HungUp) as reason:
                if call.fault in ("none", "refused"):
                    return Outcome(mark=call.mark, result="failed", error=f"no answer: {reason}")
                if not call.again:
                    return Outcome(mark=call.mark, result="unanswered", error=str(reason))
                continue
            if call.fault == "refused":
                return Outcome(mark=call.mark, result="failed", error=f"answered, though {call.refusal}")
            used = (call.number + call.rollout) % len(answer.choices)
            conversation.continue_from(call, answer, used)
            return Outcome(mark=call.mark, result="answered", tries=tried + 1, answer=answer, used=used)
        return Outcome(mark=call.mark, result="failed", error=f"no answer in {TRIES} tries")

    async def _request(self, call: CallPlan, conversation: Conversation, body: dict[str, Any], tried: int) -> Answer:
        """Send a request once; a fault that the client itself makes happens the first time only."""
        request = Request(
            base_url=f"{self.attempt.gateway_url}/a/{self.attempt.token}/v1"
            if call.pinned
            else PROVIDERS.get(call.dialect, OPENAI),
            path=conversation.path,
            body=body,
            headers={"x-stainless-retry-count": str(tried)} if tried else {},
            retries=OWN_RETRIES if call.fault in CUTS and not tried else 0,
            **({"timeout": 0.02 * call.after} if call.fault == "time out" and not tried else {}),
        )
        documents: list[Document] = []
        async with aclosing(self.clients[call.library](request)) as arriving:
            async for document in arriving:
                if not tried and call.fault == "unread":
                    raise _HungUp("at the head")
                if document is not HEAD:
                    documents.append(document)
                if not tried and call.fault == "hang up" and len(documents) >= call.after:
                    raise _HungUp(f"after {len(documents)} events")
        answer = conversation.read(documents)
        if answer is None:
            raise Lost("the answer broke off")
        return answer

    def _conversation(self, call: CallPlan) -> Conversation:
        key = (call.agent, call.dialect)
        if key not in self._conversations:
            self._conversations[key] = DIALECTS[call.dialect]()
        return self._conversations[key]


async def in_tasks(work: Callable[[str], AgentAtWork], plan: RolloutPlan) -> None:
    """Let the agents work side by side as tasks of this event loop."""
    await asyncio.gather(*(work(name).work(turns) for name, turns in plan.agents.items()))


def in_threads(work: Callable[[str], AgentAtWork], plan: RolloutPlan) -> None:
    """Let each agent work in a thread of its own, where its clients block."""

    def run(name: str) -> None:
        asyncio.run(work(name).work(plan.agents[name]))

    threads = [threading.Thread(target=run, args=(name,)) for name in plan.agents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _caller(call: CallPlan, outer: Caller | None) -> Caller:
    return Caller(agent=call.agent, node=f"{call.agent}/{call.dialect}", span_id=span_of(call.mark), outer=outer)
