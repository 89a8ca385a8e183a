"""`Draws`: seeds of calls that follow from what is asked, and not from when. Knows nothing of engines.

In a deterministic run the same rollout asks the same and must be answered the same, whichever calls come before it and
in whatever order; a second attempt at a rollout draws what the first one drew.
"""

from array import array
from collections import Counter, OrderedDict
from collections.abc import Sequence
from hashlib import blake2b

REMEMBERED = 4096
"""Attempts whose questions are counted; the longest silent are forgotten."""


class Draws:
    """Seeds of one policy's calls: of the run's seed, the rollout, the prompt, and how often the attempt asked it."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._asked: OrderedDict[str, Counter[bytes]] = OrderedDict()

    def seed(self, rollout_id: str, attempt_id: str, prompt_ids: Sequence[int]) -> int:
        """Return the seed of this call and count it; the next one with this prompt gets another."""
        prompt = blake2b(array("q", prompt_ids).tobytes(), digest_size=16).digest()
        asked = self._asked.setdefault(attempt_id, Counter())
        self._asked.move_to_end(attempt_id)
        if len(self._asked) > REMEMBERED:
            self._asked.popitem(last=False)
        asked[prompt] += 1
        call = f"{self._seed}/{rollout_id}/{asked[prompt]}/".encode() + prompt
        return int.from_bytes(blake2b(call, digest_size=7).digest())
