"""A scripted reflection function: proposes one of four texts, of which one is the instruction that the policy obeys."""

import hashlib
from collections.abc import Mapping, Sequence

START = "Answer the question."
KNOWN = "Use the calculator, then reply 'Answer: <number>'."
PROPOSALS = ("Answer in one word.", "Be brief.", KNOWN, "Think, then answer.")


def reflect(messages: Sequence[Mapping[str, str]]) -> str:
    """Return a proposal that the request decides. Requests differ by their examples, so retries propose other texts."""
    digest = hashlib.sha256(messages[0]["content"].encode()).digest()
    return f"```\n{PROPOSALS[digest[0] % len(PROPOSALS)]}\n```"
