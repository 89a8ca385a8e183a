"""Tasks with hints: agents whose reward depends on sentences that their prompt must have, and that nothing names.

The feedback of a reward gives a hint about the missing sentence. `testing.prompts.reflection` knows which sentence a
hint stands for, as a language model would conclude it.
"""

from collections.abc import Mapping

SENTENCES: Mapping[str, str] = {
    "The reader lives in Paris.": "Answer in French.",
    "The answer is read aloud.": "Write no lists.",
    "The answer has to fit on a label.": "Use at most ten words.",
}
"""The sentence that a prompt needs, by the hint."""
_KINDS = tuple(SENTENCES)


def hinted_tasks(count: int) -> list[dict[str, str]]:
    """Return tasks that need each sentence in turn."""
    return [{"question": f"Question {number} of kind {number % len(_KINDS)}."} for number in range(count)]


def judged(content: str) -> tuple[float, str]:
    """Return the score of what a model was sent, and the feedback: 1 if it has the sentence that its task needs.

    `content` is a prompt with the question of a task in it.
    """
    hint = next((hint for kind, hint in enumerate(_KINDS) if f"of kind {kind}." in content), None)
    if hint is None:
        return 0.0, "The question is missing."
    return (1.0, "Good.") if SENTENCES[hint] in content else (0.0, hint)
