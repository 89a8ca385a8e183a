"""Reasons why something was not trained: a table of all reasons, by the name under which each is counted.

The gateway, the trajectories, the algorithms and the trainer count under these names. `leyden why`, the closing table,
exports and metrics show them. A reason concerns a rollout, a task's group of rollouts, or one model call.
"""

from dataclasses import dataclass
from typing import Literal

from leyden.core.data.failure import Failure, FailureKind

Level = Literal["rollout", "group", "call"]


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason: its name, what it concerns, what it means, and what the user can change."""

    name: str
    level: Level
    means: str
    """A sentence without its full stop."""
    change: str = ""
    """What the user can change; empty where no change is needed."""


# Rollouts that failed, by what failed
FAILED: dict[FailureKind, str] = {
    "agent": "agent error",
    "timeout": "timeout",
    "reward": "reward function failed",
    "input": "task does not fit the agent",
    "cancelled": "cancelled",
    "worker": "worker lost",
    "leyden": "Leyden failed",
    "unknown": "failed without a reason",
}

# Rollouts that did not fail
NO_REWARD = "no reward"
NO_CALL = "no call"
NO_CALL_LEFT = "no call left"
NO_CREDITED_CALL = "no credited call"
NO_CALL_TO_IMITATE = "no call to imitate"
NOT_BEST = "not the best of its group"
NOT_ABOVE = "reward not above"
"""Followed by the reward that the rollout had to exceed."""
SET_APART = "set apart"
LEFT_OUT_BY_LOOP = "left out by the loop"
LOST_WEIGHTS = "drawn by discarded weights"
ROLLED_BACK = "trained in a step that was rolled back"
NO_ACTING_SIDE = "its batch taught no side that acts"
NO_STEP = "no step learned from it"
HELD_OUT = "held out"
HELD_OUT_THERE = "held out there"
NEVER_BEGUN = "never begun"
REQUEUED = "waiting to be tried again"
UNFINISHED = "not finished"
INTERRUPTED = "interrupted"
NOT_RECORDED_WHY = "not recorded why"

# Groups
TOO_FEW_REWARDS = "fewer than two rewards"
NO_SPREAD = "no spread"
NO_STATE_TWICE = "no state with two different answers"
NO_BETTER_ANSWER = "no answer better than another to the same state"
NOTHING_TO_IMITATE = "nothing to imitate"

# Calls, as the gateway records them
DISCONNECTED = "client disconnected"
ENGINE_FAILED = "engine error"
FROZEN = "frozen policy"
GATEWAY_FAILED = "gateway error"
REFUSED = "refused"
STOPPED = "gateway stopped"
CUT_OFF = "cut off with its worker"
UPSTREAM = "answered by an upstream"

# Calls, found when trajectories are built from them
NOT_SELECTED = "not selected"
NOT_RECORDED = "tokens not recorded"
IMAGE_NOT_RECORDED = "image not recorded"
SAMPLING_NOT_TRAINABLE = "sampling not trainable"
EMPTY_PROMPT = "empty prompt"
EMPTY_RESPONSE = "empty response"
BAD_LOGPROBS = "log-probabilities missing or not finite"
UNKNOWN_VERSION = "policy version unknown"
CHOICE_NOT_USED = "choice not used"
OTHER_TEMPLATE = "another tokenizer or template"
NOT_RENDERED = "cannot be rendered with the policy's template"
NO_ANSWER = "no answer recorded"
SEVERAL_ANSWERS = "several answers to one call"
CONTINUED = "goes on from an answer that is kept elsewhere"
CHANGED = "the policy's template writes an answer otherwise than it asks for one"
MORE_THAN_TEXT = "holds more than text"
EARLIER_ATTEMPT = "made by an attempt that was tried again"

# Calls, as the algorithms count them
UNCREDITED = "uncredited"
NO_VALUE = "no state to value"
IN_NO_PAIR = "in no pair"
BEYOND_CONTEXT = "beyond the context of its sequence"
OTHER_TEMPERATURE = "another temperature"
PROMPT_OVER_LIMIT = "prompt over the limit"
RESPONSE_OVER_LIMIT = "response over the limit"
UNEVEN_LOGPROBS = "log-probabilities do not match the response"
NOT_RECOMPUTED = "sampling cannot be recomputed"
IMAGES_NOT_READ = "images cannot be read"
WITH_IMAGES = "prompt with images"
ADJUSTED_SAMPLING = "sampled with a grammar, a penalty, a bias or truncation"

_SHOW = "see one with `leyden show RUN ROLLOUT`"

TABLE = (
    Reason(FAILED["agent"], "rollout", "the agent raised", f"fix the agent; {_SHOW}"),
    Reason(
        FAILED["timeout"],
        "rollout",
        "the agent, or the reward function after it, exceeded the time limit of an attempt",
        "raise --timeout, or run fewer at once with --concurrency",
    ),
    Reason(
        FAILED["reward"],
        "rollout",
        "the reward function raised, or returned something that is not a finite number; the run stops",
        "fix the reward function, then start the run again",
    ),
    Reason(
        FAILED["input"],
        "rollout",
        "the agent cannot take the task's row; the run stops",
        "give rows with the keys it takes, or --input; then start the run again",
    ),
    Reason(FAILED["cancelled"], "rollout", "the rollout was cancelled while the agent ran"),
    Reason(
        FAILED["worker"],
        "rollout",
        "the process that ran the agent was killed, exited, or stopped sending heartbeats",
        "read agents.log; look for os._exit, a crash in native code, or too little memory",
    ),
    Reason(
        FAILED["leyden"],
        "rollout",
        "Leyden itself failed; the rollout is neither trained on nor counted in an evaluation",
        "report it with the message and agents.log",
    ),
    Reason(FAILED["unknown"], "rollout", "the rollout failed, and its record has no reason", "read agents.log"),
    Reason(
        NO_REWARD,
        "rollout",
        "the rollout succeeded but has no reward; it is left out, not scored 0",
        "have the reward function return a number, or the agent emit one",
    ),
    Reason(
        NO_CALL,
        "rollout",
        "Leyden saw no model call of the agent",
        "check how the agent calls its model; docs/wire.md lists the clients that Leyden sees",
    ),
    Reason(NO_CALL_LEFT, "rollout", "the agent made model calls, but none of them can be trained on"),
    Reason(
        NO_CREDITED_CALL,
        "rollout",
        "the credit scheme gives weight to none of its calls; in a group: to calls of fewer than two rollouts",
        "choose another credit scheme, or other roles for it",
    ),
    Reason(NO_CALL_TO_IMITATE, "rollout", "the rollout has no call that can be imitated"),
    Reason(NOT_BEST, "rollout", "keep=best imitates the rollout of the group with the highest reward"),
    Reason(NOT_ABOVE, "rollout", "only rollouts with a higher reward are imitated", "lower `above`"),
    Reason(SET_APART, "rollout", "`held_out` keeps its task for a loss that is measured, not trained"),
    Reason(
        LEFT_OUT_BY_LOOP,
        "rollout",
        "the training loop dropped the task: its rollouts became too old, or failed",
    ),
    Reason(
        LOST_WEIGHTS,
        "rollout",
        "it was generated by a version that was not kept when the run stopped; the task was run again",
    ),
    Reason(ROLLED_BACK, "rollout", "the version that learned from it was set aside by a rollback"),
    Reason(NO_ACTING_SIDE, "rollout", "only sides that do not answer the agent could learn from its batch"),
    Reason(NO_STEP, "rollout", "it succeeded, but the run ended or has not reached a step that learns from it"),
    Reason(HELD_OUT, "rollout", "it measures the policy; nothing is learned from it"),
    Reason(HELD_OUT_THERE, "rollout", "it measured another run's policy; nothing is learned from it"),
    Reason(NEVER_BEGUN, "rollout", "no agent process has taken it from the queue"),
    Reason(REQUEUED, "rollout", "its last attempt was lost or timed out, and no agent process has taken it again"),
    Reason(UNFINISHED, "rollout", "an attempt is running"),
    Reason(
        INTERRUPTED,
        "rollout",
        "the run was stopped or killed before it ended",
        "resume the run: it continues from its last checkpoint; start it again if it ended before its first step",
    ),
    Reason(
        NOT_RECORDED_WHY,
        "rollout",
        "an older version of Leyden, or a custom algorithm, took steps without recording what they learned from",
    ),
    Reason(
        TOO_FEW_REWARDS,
        "group",
        "fewer than two rollouts of the task have a reward, so there is nothing to compare",
        "fix the failures of the others, or raise --group-size",
    ),
    Reason(
        NO_SPREAD,
        "group",
        "all rollouts of the task got the same reward, so there is nothing to learn",
        "give tasks that the policy sometimes solves, raise --group-size, or check that the reward reads the result",
    ),
    Reason(NO_STATE_TWICE, "group", "no prompt was answered twice with different tokens, so there is no pair"),
    Reason(
        NO_BETTER_ANSWER, "group", "all answers to the same prompt got the same reward", "lower `min_gap`, if it is set"
    ),
    Reason(NOTHING_TO_IMITATE, "group", "none of the task's rollouts passes the filter"),
    Reason(
        DISCONNECTED, "call", "the agent closed the connection before the answer ended", "raise its client's timeout"
    ),
    Reason(
        CUT_OFF,
        "call",
        "the process that ran the agent was lost while the call was answered",
        "read the failure of the rollout: the call is not its cause",
    ),
    Reason(ENGINE_FAILED, "call", "the engine failed while it answered; the client got status 500"),
    Reason(FROZEN, "call", "a frozen policy answered, which is not trained"),
    Reason(GATEWAY_FAILED, "call", "the gateway failed while it answered; the client got status 500"),
    Reason(
        REFUSED,
        "call",
        "the gateway refused the request: a parameter or format that it does not support, or a prompt that is too long",
    ),
    Reason(STOPPED, "call", "the run ended while the call was answered"),
    Reason(UPSTREAM, "call", "another model answered, not the policy that is trained"),
    Reason(
        NOT_SELECTED,
        "call",
        "the options that select calls do not select it",
        "check --agent-match, --span-match, --attribute-match and --predicate",
    ),
    Reason(NOT_RECORDED, "call", "the engine returned no token ids", "serve the policy with an engine that does"),
    Reason(
        SAMPLING_NOT_TRAINABLE,
        "call",
        "the answer was greedy (temperature 0), or truncated (top-p, top-k, min-p) without a record of what was left",
        "train at --temperature 1, and make sure that nothing between gateway and engine changes the sampling",
    ),
    Reason(IMAGE_NOT_RECORDED, "call", "the store does not have the file of an image in its prompt, or another one"),
    Reason(EMPTY_PROMPT, "call", "the prompt has no token"),
    Reason(EMPTY_RESPONSE, "call", "the answer has no token"),
    Reason(BAD_LOGPROBS, "call", "the engine did not return a finite log-probability for every token"),
    Reason(UNKNOWN_VERSION, "call", "the engine did not report which policy version generated which tokens"),
    Reason(CHOICE_NOT_USED, "call", "the agent continued with another of several choices (`n`)"),
    Reason(OTHER_TEMPLATE, "call", "its token ids were made with another tokenizer or chat template"),
    Reason(NOT_RENDERED, "call", "the policy's chat template does not accept its conversation"),
    Reason(NO_ANSWER, "call", "the record holds no answer to it"),
    Reason(SEVERAL_ANSWERS, "call", "the record holds several answers to it, but not which one the agent used"),
    Reason(CONTINUED, "call", "it continues from an answer of the Responses API that the record does not hold"),
    Reason(CHANGED, "call", "the policy's chat template cannot express its answer in tokens that it would read back"),
    Reason(MORE_THAN_TEXT, "call", "its conversation holds images, files or sounds"),
    Reason(EARLIER_ATTEMPT, "call", "its attempt was lost or timed out, and the rollout was run again"),
    Reason(UNCREDITED, "call", "the credit scheme gives it no weight", "choose another credit scheme"),
    Reason(NO_VALUE, "call", "the critic cannot read its prompt: it is empty, or longer than the model's context"),
    Reason(IN_NO_PAIR, "call", "no other answer to the same prompt was better or worse, or another pair was chosen"),
    Reason(
        BEYOND_CONTEXT,
        "call",
        "trajectory=concatenated reads the calls of a rollout as one sequence, and the model's context ends before it",
        "train with trajectory=transitions, whose calls each have a context of their own",
    ),
    Reason(OTHER_TEMPERATURE, "call", "it was generated at another temperature than the training loop uses"),
    Reason(
        PROMPT_OVER_LIMIT, "call", "its prompt is longer than the training loop accepts", "raise data.max_prompt_length"
    ),
    Reason(
        RESPONSE_OVER_LIMIT,
        "call",
        "its answer is longer than the training loop accepts",
        "raise data.max_response_length, or have the agent ask for fewer tokens",
    ),
    Reason(UNEVEN_LOGPROBS, "call", "the numbers of its tokens and of its log-probabilities differ"),
    Reason(
        NOT_RECOMPUTED,
        "call",
        "the trainer cannot compute which tokens its grammar allowed: the answer does not follow the recorded grammar",
        "read the run's log for the reason; serve and train with the same tokenizer and the same version of llguidance",
    ),
    Reason(
        IMAGES_NOT_READ,
        "call",
        "its prompt has images, and the policy that is trained cannot read them as the policy that answered",
        "train the policy that answered; read the run's log for the reason",
    ),
    Reason(WITH_IMAGES, "call", "its prompt has images, and VERL is given none", "train with Leyden's own backend"),
    Reason(
        ADJUSTED_SAMPLING,
        "call",
        "a grammar, a penalty, a bias or truncation changed its tokens' probabilities, and VERL's engine with these "
        "settings cannot compute that",
        "set VERL's strategy to fsdp or fsdp2, without fused kernels and sequence parallelism, or train with Leyden's "
        "own backend",
    ),
)
REASONS: dict[str, Reason] = {reason.name: reason for reason in TABLE}


def reason_of(name: str) -> Reason:
    """Return the reason with this name; a prefix such as `side: ` before the name is ignored.

    A name that is not in the table is a reason of the user's own algorithm. Its meaning is then the name itself.
    """
    known = REASONS.get(name) or REASONS.get(name.partition(": ")[2])
    if known is None and name.startswith(NOT_ABOVE):
        known = REASONS[NOT_ABOVE]
    return known or Reason(name, "rollout", name)


def why_not_trained(recorded: str, failure: Failure | None) -> str:
    """Return why a call is not trained: the reason that the gateway `recorded`, corrected by the attempt's `failure`.

    The gateway records only that its client disconnected. With a failure of kind `worker`, the process of the client
    was lost, so the reason is `CUT_OFF`.
    """
    is_lost = failure is not None and failure.kind == "worker"
    return CUT_OFF if recorded == DISCONNECTED and is_lost else recorded


def failed_by(failure: Failure) -> str:
    """Return the name under which rollouts with `failure` are counted."""
    return FAILED.get(failure.kind, FAILED["unknown"])
