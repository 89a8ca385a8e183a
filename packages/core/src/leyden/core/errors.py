"""Every error Leyden raises, by the boundary it crossed.

    LeydenError
    ├── UsageError                what the user gave cannot work; the CLI prints one line and exits with 2
    │   ├── AgentNotFound         the file, module or attribute named for the agent or reward does not exist or load
    │   ├── UnknownAgent          no adapter recognises the agent object
    │   ├── TaskError             a task file or one of its rows is malformed
    │   ├── RewardError           the reward function raised, or returned something that is not a finite number
    │   ├── PolicyError           a policy folder or hub name cannot be loaded, or has no chat template
    │   ├── RunError              a run folder is missing, taken, or not resumable
    │   └── NothingToLearn        agents and reward work, and leave nothing to train: the run stays, and can go on
    ├── StoreError
    │   ├── NotFound              no such rollout, attempt, resource or worker (also a ValueError)
    │   ├── IllegalMove           a status change the state tables do not allow (also a ValueError)
    │   └── CallRefused           a store takes no such call, however often it is sent (also a ValueError)
    │       └── WrongType         an argument is of another type than the interface says (also a TypeError)
    ├── EngineError               the engine could not answer, or serves weights it should not
    ├── GatewayError              a model call could not be accepted
    └── TrainingError             a step cannot be taken: what it is given does not fit, or numbers are not finite
        └── CheckFailed           the check before a run found what would keep it from learning

Knows nothing of the rest of the package.
"""


class LeydenError(Exception):
    """Something went wrong in Leyden itself."""


class UsageError(LeydenError):
    """What was given cannot work."""


class AgentNotFound(UsageError):
    """The named agent or reward could not be found."""


class UnknownAgent(UsageError):
    """No installed adapter recognises this object as an agent."""


class TaskError(UsageError):
    """A task could not be read."""


class RewardError(UsageError):
    """The reward function did not return a finite number."""


class PolicyError(UsageError):
    """The policy could not be loaded."""


class RunError(UsageError):
    """The run folder cannot be used."""


class NothingToLearn(UsageError):
    """Nothing of a step's rollouts can be trained."""


class StoreError(LeydenError):
    """The store refused or failed."""


class NotFound(StoreError, ValueError):
    """The store has no such thing."""


class IllegalMove(StoreError, ValueError):
    """The state tables do not allow this status change."""


class CallRefused(StoreError, ValueError):
    """The store does not take this call: what it says cannot be, it is too large, or it is not its token's to make."""


class WrongType(CallRefused, TypeError):
    """An argument is of another type than the interface says."""


class EngineError(LeydenError):
    """The engine could not answer."""


class GatewayError(LeydenError):
    """The gateway could not accept a model call."""


class TrainingError(LeydenError):
    """The step cannot be taken."""


class CheckFailed(TrainingError):
    """The run would not learn."""


REFUSALS = (ValueError, UsageError)
"""What a store raises for something that it will never take; it works, and takes others."""
