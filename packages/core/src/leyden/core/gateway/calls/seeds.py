"""Call seeds: computes the sampling seed of a model call from its content, not from its time of arrival.

In a deterministic run, the same rollout sends the same requests and must get the same responses. The order of other
calls must not matter. A second attempt at a rollout therefore samples the same tokens as the first attempt.
"""

from array import array
from collections import Counter, OrderedDict
from collections.abc import Sequence
from hashlib import blake2b

REMEMBERED = 4096
"""Number of attempts whose prompts are counted; the least recently used attempt is dropped first."""


class CallSeeds:
    """Seeds for the calls of one policy.

    A seed is a hash of the run's seed, the rollout id without the run's own `prefix`, the prompt, and how often the
    attempt has sent this prompt.
    """

    def __init__(self, seed: int, prefix: str = "") -> None:
        self._seed, self._prefix = seed, prefix
        self._prompt_counts: OrderedDict[str, Counter[bytes]] = OrderedDict()

    def seed(self, rollout_id: str, attempt_id: str, prompt_ids: Sequence[int]) -> int:
        """Return the 56-bit seed of this call and count the call; the next call with this prompt gets another seed."""
        prompt = blake2b(array("q", prompt_ids).tobytes(), digest_size=16).digest()
        counts = self._prompt_counts.setdefault(attempt_id, Counter())
        self._prompt_counts.move_to_end(attempt_id)
        if len(self._prompt_counts) > REMEMBERED:
            self._prompt_counts.popitem(last=False)
        counts[prompt] += 1
        call = f"{self._seed}/{rollout_id.removeprefix(self._prefix)}/{counts[prompt]}/".encode() + prompt
        return int.from_bytes(blake2b(call, digest_size=7).digest())
