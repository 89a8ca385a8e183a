"""Plans a campaign: rollouts of three agents and their calls, drawn from a seed.

Each call has a mark in its prompt, so that rollout, agent and number of a call can be read from the ids alone.
"""

import re
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from random import Random
from typing import Any, Literal, TypeAlias

import msgspec

from campaign.formats import FORMATS
from campaign.pictures import Picture, draw_picture
from leyden.core.data.route import POLICY, Route

AGENTS = ("planner", "solver", "critic")
VIEWER = "viewer"
"""Name of the policy that reads images."""
VIEWING_AGENT = "critic"
"""The agent whose calls it answers; a text policy answers the others."""
ROUTES = (Route(agent=VIEWING_AGENT, to=VIEWER),)
LIBRARIES = ("sdk", "httpx", "other")
"""`sdk` is the provider's own client; `other` is requests in threads, aiohttp in tasks."""
Fault: TypeAlias = Literal["none", "hang up", "unread", "time out", "sent", "lost", "half", "live", "refused"]
"""What goes wrong with a call.

The client closes a stream (`hang up`), closes an answer at its head (`unread`) or waits too short (`time out`). The
connection is cut when the request was sent (`sent`), when all of the answer was read in the client's place (`lost`),
with half of it given on (`half`), or at its first bytes (`live`). The gateway cannot do what is asked (`refused`).
"""
CUTS: tuple[Fault, ...] = ("sent", "lost", "half", "live")
TOOLS = ("none", "auto", "required", "named", "one at a time", "strict")
"""`strict`: a call is required, and the tools are declared as strict."""
REFUSALS = ("too warm", "no such tool", "a schema", "an unknown field", "too long", "an image")
"""`an image`: one that the policy cannot read or that would have to be fetched; only in `WITH_PICTURES`."""
WITH_PICTURES = ("chat", "responses", "messages")
"""Dialects in which requests may hold images."""
EXTENDED = ("chat", "completions")
"""Dialects with `n`, `seed`, penalties, a bias, and the further fields of vLLM's API."""
TOKENS = 600
"""Ids below this number are tokens of the policy."""
CALLS_PER_ROLLOUT = 24
MARK = re.compile(r"\[r(\d+) (\w+) #(\d+)\]")

QUESTIONS = (
    "Ann has {a} apples and gets {b} more. How many apples now?",
    "A shop had {a} shells and sold {b}. How many remain?",
    "Multiply {a} by {b}.",
)

Mark: TypeAlias = tuple[int, str, int]
"""Rollout, agent and number of a call."""


class CallPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One call, and what goes wrong with it."""

    rollout: int
    agent: str
    number: int
    """Its place among the calls of its rollout, from 0."""
    question: str
    dialect: str
    library: str
    stream: bool
    tools: str
    format: str
    """The format that is required of the answer; `none` for any text."""
    shaping: dict[str, Any]
    """Fields that shape the distribution, stop tokens and token ids, as Chat Completions names them."""
    echo: bool
    choices: int
    logprobs: bool
    top_logprobs: int
    stop: str | None
    max_tokens: int
    temperature: float | None
    top_p: float | None
    seed: int | None
    pictures: tuple[Picture, ...]
    """Images that the call brings into its conversation."""
    shows_result: bool
    """Whether the first picture is the result of a tool, if the answer before this call called one."""
    pinned: bool
    """Whether its client has the gateway's own URL, rather than the provider's."""
    fault: Fault
    after: int
    """Parts of a stream that arrive before the client hangs up."""
    again: bool
    """Whether the client tries again when it got no answer."""
    refusal: str

    @property
    def mark(self) -> Mark:
        """Rollout, agent and number; no other call has the same."""
        return self.rollout, self.agent, self.number

    @property
    def written(self) -> str:
        """The mark as it stands in the prompt."""
        return f"[r{self.rollout:05d} {self.agent} #{self.number:03d}]"


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One step of an agent: what it has others do meanwhile, and then its own call."""

    call: CallPlan
    inside: tuple[CallPlan, ...] = ()


class RolloutPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One rollout: the turns of its agents, which work side by side."""

    number: int
    mode: Literal["train", "val"]
    """In training the sampling is the policy's, else the agent's own."""
    cut: bool
    """Whether its calls go through the proxy that cuts connections."""
    agents: dict[str, tuple[Turn, ...]]

    def calls(self) -> Iterator[CallPlan]:
        """Every call of it."""
        for turns in self.agents.values():
            for turn in turns:
                yield from turn.inside
                yield turn.call


def policy_of(agent: str) -> str:
    """Return the name of the policy that answers an agent."""
    return VIEWER if agent == VIEWING_AGENT else POLICY


def span_of(mark: Mark) -> str:
    """Id of the span that a framework would have given a call."""
    return blake2b(repr(mark).encode(), digest_size=8).hexdigest()


def marks_in(text: str) -> list[Mark]:
    """The marks in a prompt, in order; the last one is that of the call itself."""
    return [(int(rollout), agent, int(number)) for rollout, agent, number in MARK.findall(text)]


def make_plans(calls: int, seed: int, dialects: Sequence[str]) -> list[RolloutPlan]:
    """Plan so many calls; the same seed plans the same."""
    random = Random(seed)
    sizes = [CALLS_PER_ROLLOUT] * (calls // CALLS_PER_ROLLOUT)
    if rest := calls - sum(sizes):
        sizes.append(rest)
    return [_rollout(random, number, size, dialects) for number, size in enumerate(sizes)]


def _rollout(random: Random, number: int, size: int, dialects: Sequence[str]) -> RolloutPlan:
    cut = random.random() < 0.5
    turns: dict[str, list[Turn]] = {agent: [] for agent in AGENTS}
    made = 0
    while made < size:
        agent = AGENTS[made % len(AGENTS)]
        others = [other for other in AGENTS if other != agent] if random.random() < 0.25 else []
        names = [*random.sample(others, min(len(others), size - made - 1, random.randint(1, 2))), agent]
        *inside, own = [_call(random, (number, name, made + n), dialects, cut) for n, name in enumerate(names)]
        turns[agent].append(Turn(call=own, inside=tuple(inside)))
        made += len(names)
    mode: Literal["train", "val"] = "val" if random.random() < 0.4 else "train"
    return RolloutPlan(number=number, mode=mode, cut=cut, agents={name: tuple(made) for name, made in turns.items()})


LEAST_TOKENS = {"responses": 16}
"""Least limit of an answer's tokens that a dialect accepts, where it is above 1."""


def _call(random: Random, mark: Mark, dialects: Sequence[str], cut: bool) -> CallPlan:
    dialect, library, stream = random.choice(dialects), random.choice(LIBRARIES), random.random() < 0.5
    extended, logprobs = dialect in EXTENDED, random.random() < 0.3
    format = random.choice(FORMATS[dialect]) if random.random() < 0.35 else "none"
    tools = "none" if dialect == "completions" else random.choices(TOOLS, (36, 23, 12, 12, 9, 8))[0]
    longest = 24 if format == "none" and tools in ("none", "auto") else 64
    fault = _fault(random, library, stream, cut)
    return CallPlan(
        rollout=mark[0],
        agent=mark[1],
        number=mark[2],
        question=random.choice(QUESTIONS).format(a=random.randint(2, 99), b=random.randint(2, 99)),
        dialect=dialect,
        library=library,
        stream=stream,
        tools=tools,
        format=format,
        shaping=_shaping(random, dialect),
        echo=dialect == "completions" and random.random() < 0.2,
        choices=random.choices((1, 2, 3), (80, 12, 8))[0] if extended else 1,
        logprobs=logprobs and dialect != "messages",
        top_logprobs=random.choice((0, 2, 5)) if logprobs else 0,
        stop=random.choice((None, None, None, "a", "s ", "1")) if dialect != "responses" else None,
        max_tokens=random.randint(LEAST_TOKENS.get(dialect, 1), longest),
        temperature=random.choice((None, 0.0, 0.7, 1.0 if dialect == "messages" else 1.3)),
        top_p=random.choice((None, None, 0.9)),
        seed=random.choice((None, random.randint(0, 99))) if extended else None,
        pictures=_pictures(random, mark, dialect),
        shows_result=random.random() < 0.5,
        pinned=random.random() < 0.15,
        fault=fault,
        after=random.randint(1, 4),
        again=fault in CUTS or random.random() < 0.6,
        refusal=random.choice(REFUSALS if dialect in WITH_PICTURES else REFUSALS[:-1]),
    )


def _pictures(random: Random, mark: Mark, dialect: str) -> tuple[Picture, ...]:
    if mark[1] != VIEWING_AGENT or dialect not in WITH_PICTURES:
        return ()
    count = random.choices((0, 1, 2), (3, 4, 3))[0]
    return tuple(draw_picture(random, f"{mark} {place}") for place in range(count))


def _shaping(random: Random, dialect: str) -> dict[str, Any]:
    """Return some of the fields of `CallPlan.shaping` that the dialect has; most calls have none or one."""
    possible: dict[str, Any] = {"top_k": random.choice((1, 2, 5, 40))}
    if dialect in EXTENDED:
        biased = {str(random.randrange(TOKENS)): random.choice((-100, -1.5, 2, 6.5)) for _ in range(4)}
        possible |= {
            "presence_penalty": random.choice((-1.0, 0.5, 2.0)),
            "frequency_penalty": random.choice((-0.5, 0.3, 1.5)),
            "repetition_penalty": random.choice((0.8, 1.1, 1.5)),
            "logit_bias": biased,
            "min_p": random.choice((0.01, 0.1, 0.5)),
            "stop_token_ids": random.sample(range(TOKENS), 2),
        }
    if dialect == "chat":
        possible |= {
            "return_token_ids": True,
            "chat_template_kwargs": {"enable_thinking": False},
            "reasoning_effort": "low",
        }
    if dialect == "responses" or random.random() < 0.4:
        return {}
    names = random.sample(list(possible), min(len(possible), random.choice((1, 1, 2, 3))))
    return {name: possible[name] for name in names}


def _fault(random: Random, library: str, stream: bool, cut: bool) -> Fault:
    """Most calls go well; which faults are possible depends on the client and on the way."""
    drawn = random.random()
    if drawn < 0.05:
        return "refused"
    if drawn < 0.10:
        return "time out"
    if drawn < 0.25:
        return "hang up" if stream else "unread" if library != "sdk" else "none"
    return random.choice(CUTS) if cut and drawn < 0.45 else "none"
