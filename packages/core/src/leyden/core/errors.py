"""Errors of Leyden: the shared classes of exceptions, by the part that raises them.

    LeydenError
    ├── UsageError                the user's input cannot work; the CLI prints one line and exits with 2
    │   ├── AgentNotFound         the file, module or attribute named for the agent or reward does not exist or load
    │   ├── UnknownAgent          no adapter recognises the agent object
    │   ├── TaskError             a task file or one of its rows is malformed
    │   ├── RewardError           the reward function raised, or returned something that is not a finite number
    │   ├── PolicyError           a policy folder or hub name cannot be loaded, or has no chat template
    │   ├── PromptError           a file of prompts, or the new text of a prompt, cannot be used
    │   ├── RunError              a run folder is missing, taken, or not resumable
    │   └── NothingToLearn        agents and reward work, but no rollout can be trained; the run can be resumed
    ├── StoreError
    │   ├── StoreClosed           this process has closed the store
    │   ├── NotFound              no such rollout, attempt, resource or worker (also a ValueError)
    │   ├── IllegalMove           a status change that the state tables do not allow (also a ValueError)
    │   └── CallRefused           a call that a store refuses every time it is sent (also a ValueError)
    │       └── WrongType         an argument has another type than the interface declares (also a TypeError)
    ├── EngineError               the engine could not answer, or serves weights that it should not
    │   └── UnusableGrammar       the engine cannot follow the grammar of a call (also a GrammarError)
    ├── GatewayError              a model call could not be accepted
    ├── GrammarError              a grammar is invalid, or does not allow a response
    ├── ImageError                an image of a prompt cannot be read
    └── TrainingError             a training step cannot be taken: its input does not fit, or numbers are not finite
        └── CheckFailed           the check before a run found a reason why the policy would not learn

Errors that only one module needs are defined there, some of them as subclasses of `LeydenError`.
"""

import difflib
from collections.abc import Iterable


class LeydenError(Exception):
    """Base class of all errors of Leyden."""


class UsageError(LeydenError):
    """The user's input cannot work."""


class AgentNotFound(UsageError):
    """The named agent or reward was not found."""


class UnknownAgent(UsageError):
    """No installed adapter recognises this object as an agent."""


class TaskError(UsageError):
    """A task could not be read."""


class RewardError(UsageError):
    """The reward function did not return a finite number."""


class PolicyError(UsageError):
    """The policy could not be loaded."""


class PromptError(UsageError):
    """A file of prompts, a prompt template, or the new text of a prompt, cannot be used."""


class RunError(UsageError):
    """The run folder cannot be used."""


class NothingToLearn(UsageError):
    """No rollout of a step can be trained."""


class StoreError(LeydenError):
    """The store refused a call, or failed."""


class StoreClosed(StoreError):
    """This process has closed the store."""

    def __init__(self) -> None:
        super().__init__("this store is closed")


class NotFound(StoreError, ValueError):
    """The store has no object with this id."""


class IllegalMove(StoreError, ValueError):
    """The state tables do not allow this status change."""


class CallRefused(StoreError, ValueError):
    """The store refuses this call: its arguments are invalid or too large, or its token does not permit it."""


class WrongType(CallRefused, TypeError):
    """An argument has another type than the interface declares."""


class EngineError(LeydenError):
    """The engine could not answer."""


class GatewayError(LeydenError):
    """The gateway could not accept a model call."""


class GrammarError(LeydenError):
    """A grammar is invalid, cannot be used with the policy's tokenizer, or does not allow a response."""


class UnusableGrammar(EngineError, GrammarError):
    """The engine cannot follow the grammar of a call; without this grammar, it could answer the call."""


class ImageError(LeydenError):
    """An image cannot be read: its file is broken, too large, or not in the request."""


class TrainingError(LeydenError):
    """The training step cannot be taken."""


class CheckFailed(TrainingError):
    """The check before a run found that the policy would not learn."""


REFUSALS = (ValueError, UsageError)
"""Errors that a store raises for a call that it always refuses; the store itself works, and accepts other calls."""


def first_line(error: BaseException) -> str:
    """Return the first line of the text of a library's error, or the name of its class if it has no text.

    A line that ends with a colon is followed by the next, which is the reason.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    while len(lines) > 1 and lines[0].endswith(":"):
        lines[:2] = [f"{lines[0]} {lines[1]}"]
    return lines[0] if lines else type(error).__name__


def did_you_mean(name: str, known: Iterable[str], within: str = "") -> str:
    """Return the end of a message about an unknown name: the closest of the known names, or an empty text.

    `within` is written before the found name.
    """
    close = difflib.get_close_matches(name, list(known), 1, cutoff=0.7)
    return f"; did you mean {within}{close[0]}?" if close else ""
