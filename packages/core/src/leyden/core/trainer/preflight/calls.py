"""Preflight checks of rollouts and model calls: rollouts succeed; their calls are recorded and trainable."""

import math
from collections import defaultdict

from leyden.core.data import semconv
from leyden.core.data.reasons import (
    BAD_LOGPROBS,
    EMPTY_PROMPT,
    EMPTY_RESPONSE,
    NOT_RECORDED,
    NOT_SELECTED,
    SAMPLING_NOT_TRAINABLE,
    UNKNOWN_VERSION,
)
from leyden.core.runner.attempts.error_text import with_key_advice
from leyden.core.trainer.preflight.evidence import Evidence
from leyden.core.trainer.preflight.report import CheckResult, failure, ok, unchecked, warning

NOT_WHOLE = (NOT_RECORDED, BAD_LOGPROBS, EMPTY_PROMPT, EMPTY_RESPONSE, UNKNOWN_VERSION)
TOO_LONG = "context_length_exceeded"
"""Error code that a client receives for a prompt over the limit; the same as in OpenAI's API."""
UNLIKELY = 1e-6
"""Probability of equal answers by chance below which the tokens cannot have been sampled."""


def check_rollouts(evidence: Evidence) -> CheckResult:
    """Check that the agent runs to its end."""
    count, failed = evidence.total("rollouts"), evidence.total("failed")
    if not count:
        return failure("rollouts", "no rollout was run", "give tasks")
    if not failed:
        return ok("rollouts", f"{count} of {count} succeeded")
    verdict = failure if failed == count else warning
    advice = f"`{evidence.why_command}` lists the failures, `leyden dev` shows every span; {evidence.agents_output}"
    return verdict("rollouts", f"{failed} of {count} failed: {with_key_advice(evidence.failures.line())}", advice)


def check_calls(evidence: Evidence) -> CheckResult:
    """Check that the agent's model calls reach the gateway."""
    count, empty, failed = (evidence.total(name) for name in ("rollouts", "empty", "failed"))
    if empty < count:
        seen = f"{evidence.calls} calls in {count - empty} rollouts"
        if not empty:
            return ok("calls", seen)
        return warning(
            "calls", f"{seen}; {empty} rollouts made none", "check whether the agent is meant to make no call"
        )
    if failed == count:
        return unchecked("calls", "every rollout failed, see rollouts")
    reasons = "; ".join(evidence.silence())
    why = f": {reasons}" if reasons else ""
    change = "have the agent call its model through httpx, aiohttp or requests (docs/wire.md), or give it the base URL"
    return failure("calls", f"Leyden saw no model call in {count} rollouts{why}", change)


def check_tokens(evidence: Evidence) -> CheckResult:
    """Check that calls are recorded with the ids and log-probabilities of their tokens."""
    wrong = {reason: evidence.excluded[reason] for reason in NOT_WHOLE if evidence.excluded[reason]}
    bad = sum(wrong.values())
    judged = len(evidence.transitions) + bad
    if not judged:
        return unchecked("tokens", "no selected call was answered, see calls, selection and prompts")
    if not bad:
        tokens = sum(len(call.response_ids) for call in evidence.transitions)
        return ok("tokens", f"ids and log-probabilities of {tokens} tokens in {judged} calls")
    reasons = ", ".join(f"{count} × {reason}" for reason, count in wrong.items())
    change = "the engine must return ids and log-probabilities for every token that it generates"
    verdict = failure if bad == judged else warning
    return verdict("tokens", f"{bad} of {judged} calls cannot be trained on: {reasons}", change)


def check_selection(evidence: Evidence) -> CheckResult:
    """Check that the selected calls are trained, and that every policy answers some."""
    config, left_out = evidence.config, evidence.excluded[NOT_SELECTED]
    selection = {
        "--agent-match": config.agent_match,
        "--span-match": config.span_match,
        "--attribute-match": config.attribute_match or None,
        "--predicate": config.predicate,
    }
    named = " ".join(f"{option} {value!r}" for option, value in selection.items() if value is not None)
    speakers = ", ".join(f"{name} ({count} calls)" for name, count in evidence.speakers().most_common(8))
    if not evidence.calls:
        return unchecked("selection", "no call was recorded, see calls")
    if evidence.transitions and (unused := set(config.answering) - {call.policy for call in evidence.transitions}):
        which = " and ".join(repr(policy) for policy in sorted(unused))
        change = (
            "give a --route that names agents or nodes listed here; or give --no-check, if the policy is called only "
            "rarely"
        )
        return failure(
            "selection", f"policy {which} answered no call that is trained; agents and nodes seen: {speakers}", change
        )
    if not named:
        return ok("selection", f"every call is trained: {speakers}")
    if left_out < evidence.calls:
        return ok("selection", f"{named} leaves out {left_out} of {evidence.calls} calls; {speakers}")
    change = "match a name that is listed here: --agent-match matches agents and nodes; `leyden dev` shows all spans"
    return failure(
        "selection", f"{named} matches none of {evidence.calls} calls; agents and nodes seen: {speakers}", change
    )


def check_sampling(evidence: Evidence) -> CheckResult:
    """Check that tokens are sampled at a temperature above 0, so that the rollouts of a task differ.

    If a prompt got the same tokens in k answers, and p is their recorded probability, sampling produces this with
    probability p^(k - 1). The product over all such prompts must not be below one in a million.
    """
    greedy = evidence.excluded[SAMPLING_NOT_TRAINABLE]
    if greedy and not evidence.transitions:
        change = "train at --temperature 1, and make sure that nothing between gateway and engine changes the sampling"
        return failure("sampling", f"{greedy} calls were greedy or truncated, which cannot be learned from", change)
    if not evidence.transitions:
        return unchecked("sampling", "no call can be trained on, see the checks above")
    repeated, differ, log_chance = _repeats(evidence)
    if not repeated:
        seen = "no prompt was answered twice, so it is unknown whether answers differ"
        return warning(
            "sampling", seen, "if prompts contain times or random ids, rollouts of a task are less comparable"
        )
    if differ:
        return ok("sampling", f"{differ} of {repeated} prompts that were answered several times got different answers")
    seen = f"all {repeated} prompts that were answered several times got the same answer each time"
    if log_chance < math.log(UNLIKELY):
        seen += (
            f", which has a chance of 10^{log_chance / math.log(10):.0f} if the engine sampled with the recorded "
            "probabilities"
        )
        return failure("sampling", seen, "the engine decodes greedily, or with a fixed seed: configure it to sample")
    change = "the policy is almost certain of every token: start from another policy, or raise --temperature"
    return warning("sampling", seen, change)


def _repeats(evidence: Evidence) -> tuple[int, int, float]:
    """Return three numbers about prompts that were answered several times.

    They are: how many there are, how many of them got different answers, and the log-probability that all answers
    agree.
    """
    answers: defaultdict[bytes, list[tuple[tuple[int, ...], float]]] = defaultdict(list)
    for call in evidence.transitions:
        answers[call.state].append((tuple(call.response_ids), math.fsum(call.logprobs)))
    several = [given for given in answers.values() if len(given) > 1]
    differ = sum(len({ids for ids, _ in given}) > 1 for given in several)
    log_chance = math.fsum((len(given) - 1) * given[0][1] for given in several)
    return len(several), differ, log_chance


def check_prompts(evidence: Evidence) -> CheckResult:
    """Check that prompts, and the answers after them, fit into the model's context."""
    room = evidence.context_length
    refused = [span for span in evidence.spans() if span.attributes.get(semconv.ERROR_TYPE) == TOO_LONG]
    lengths = [len(call.prompt_ids) for call in evidence.transitions]
    whole = [len(call.prompt_ids) + len(call.response_ids) for call in evidence.transitions]
    shorter = "shorten the agent's prompts, or use a policy with a longer context"
    if refused:
        reason = refused[0].status.description or ""
        seen = (
            f"{len(refused)} calls were refused: their prompts are over the limit of {room} tokens. {reason}".rstrip()
        )
        verdict = failure if len(refused) >= len(evidence.transitions) else warning
        return verdict("prompts", seen.rstrip("."), shorter)
    if not lengths:
        return unchecked("prompts", "no call can be trained on, see the checks above")
    cut = sum(length >= room for length in whole)
    seen = f"up to {max(lengths)} tokens, {max(whole)} with the answer; the model's context has {room}"
    if cut > len(whole) / 10:
        return warning("prompts", f"{seen}, and {cut} of {len(whole)} answers were cut off by this limit", shorter)
    return ok("prompts", seen)
