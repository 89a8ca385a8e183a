"""The table client × case: what the suite tests with each client in each API, and why it leaves the rest out.

`python tests/clients/table.py` writes it to `docs/clients.md`.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from exchanges import Exchange, load
from observing import CLIENTS, Client

PAGE = Path(__file__).parents[2] / "docs/clients.md"

CASES: Mapping[str, str] = {
    "plain": r"(text|developer|length|stop|logprobs|text_continued)",
    "stream": r"(text|length|logprobs)_stream(_plain|_usage)?",
    "tools": r"tool_(call|named|none|required|result)(_stream)?",
    "parallel tools": r"tool_calls_parallel(_stream)?",
    "n > 1": r"n2(_stream)?",
    "reasoning": r"reasoning(_\w+)?",
    "structured output": r"structured(_stream)?",
    "hang-up": r"cancel_(stream|timeout)",
    "retry": r"retry(_stream)?",
    "error": r"error_\w+",
}
"""Each case, as a pattern of the names of its exchanges without their API."""
APIS = {"chat": "Chat Completions", "responses": "Responses", "messages": "Messages"}
NO_SUCH_CASE = "—"
"""The API has no such case."""

NAMES: Mapping[str, str] = {
    "openai2": "`openai` 2",
    "openai3": "`openai` 3",
    "openai028": "`openai` 0.28",
    "langchain": "`langchain-openai`, `openai` 2",
    "langchain_openai3": "`langchain-openai`, `openai` 3",
    "litellm": "`litellm`",
    "strict": "a strict reader of events",
    "anthropic": "`anthropic`",
    "langchain_anthropic": "`langchain-anthropic`",
    "node": "`openai` (npm)",
    "anthropic_node": "`@anthropic-ai/sdk` (npm)",
    "vercel": "Vercel's `ai` (npm)",
    "curl": "`curl`",
}

HEAD = """# Clients

The suite in `tests/clients` runs real client libraries against the gateway, and the same libraries against recorded
answers of the providers. What a client returns must be equal, field by field, but for ids, times, token counts and
log-probabilities. Each Python client calls the gateway in two ways: with wire routing inside an attempt, and as a
foreign process with a base URL. The other clients call it in the second way.

`python tests/clients/table.py` writes this page from what the suite declares, and a test compares them. A number is the
number of exchanges that are tested. A dash means that the API has no such case. A client has no row for an API that it
does not speak. `make clients` installs the libraries, and `make test-long` runs the suite. `tests/clients/known.py`
lists the differences that are known, with their reasons.

"""


def case_of(name: str) -> str:
    """The case of an exchange; raises LookupError for a name that belongs to none or to several."""
    rest = re.sub(r"^(chat|responses|messages)_", "", name)
    found = [case for case, pattern in CASES.items() if re.fullmatch(pattern, rest)]
    if len(found) != 1:
        raise LookupError(f"{name} belongs to the cases {found}")
    return found[0]


def page() -> str:
    """The whole page."""
    exchanges = list(load().values())
    reasons: list[str] = []
    lines = [f"| client | API | {' | '.join(CASES)} |", "|---|---|" + "---|" * len(CASES)]
    for name, client in CLIENTS.items():
        for api in client.dialects:
            cells = [_cell(client, [one for one in exchanges if _is(one, api, case)], reasons) for case in CASES]
            lines.append(f"| {NAMES[name]} | {APIS[api]} | {' | '.join(cells)} |")
    notes = [f"{number}. {reason}" for number, reason in enumerate(reasons, 1)]
    return HEAD + "\n".join([*lines, "", "What is left out:", "", *notes, ""])


def _is(exchange: Exchange, api: str, case: str) -> bool:
    return exchange.dialect == api and case_of(exchange.name) == case


def _cell(client: Client, exchanges: Sequence[Exchange], reasons: list[str]) -> str:
    """What is tested of a case, with the numbers of the reasons why some exchanges are not; adds new reasons."""
    if not exchanges:
        return NO_SUCH_CASE
    tested = sum(client.can(one) for one in exchanges)
    left_out = dict.fromkeys(why for one in exchanges if (why := client.why_not(one.name)) is not None)
    for why in left_out:
        if why not in reasons:
            reasons.append(why)
    notes = ", ".join(f"[{reasons.index(why) + 1}]" for why in left_out)
    return " ".join(filter(None, [f"{tested}" if tested else "not supported", notes]))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
