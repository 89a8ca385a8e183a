"""Attribute names: the OpenTelemetry GenAI conventions we use, and our own `leyden.*`.

The conventions' published constants are marked as moved, so the strings live here, once.
"""

# OpenTelemetry GenAI conventions
OPERATION = "gen_ai.operation.name"
"""One of `chat`, `text_completion`, `invoke_agent`, `execute_tool`, `invoke_workflow`."""
PROVIDER = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
REQUEST_STREAM = "gen_ai.request.stream"
RESPONSE_MODEL = "gen_ai.response.model"
RESPONSE_ID = "gen_ai.response.id"
FINISH_REASONS = "gen_ai.response.finish_reasons"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
INPUT_MESSAGES = "gen_ai.input.messages"
OUTPUT_MESSAGES = "gen_ai.output.messages"
TOOL_DEFINITIONS = "gen_ai.tool.definitions"
AGENT_NAME = "gen_ai.agent.name"
AGENT_ID = "gen_ai.agent.id"
AGENT_DESCRIPTION = "gen_ai.agent.description"
WORKFLOW_NAME = "gen_ai.workflow.name"
TOOL_NAME = "gen_ai.tool.name"
TOOL_CALL_ID = "gen_ai.tool.call.id"
TOOL_ARGUMENTS = "gen_ai.tool.call.arguments"
TOOL_RESULT = "gen_ai.tool.call.result"
ERROR_TYPE = "error.type"
CONTENT_ATTRIBUTES = frozenset({INPUT_MESSAGES, OUTPUT_MESSAGES, TOOL_DEFINITIONS, TOOL_ARGUMENTS, TOOL_RESULT})
"""What may hold what was said; a foreign backend is told of it only on request."""

# Ours: who and where
ROLLOUT_ID = "leyden.rollout.id"
ATTEMPT_ID = "leyden.attempt.id"
NODE = "leyden.node"
"""The graph node that spoke, where the framework has nodes."""
FRAMEWORK = "leyden.framework"
HANDOFF = "leyden.handoff"
"""Operation of a span that says that one agent passes the conversation, or a task, on to another."""
HANDOFF_FROM = "leyden.handoff.from"
HANDOFF_TO = "leyden.handoff.to"
GUARDRAIL = "leyden.guardrail"
"""Operation of a span around a check of what goes into an agent or comes out of it."""
GUARDRAIL_TRIGGERED = "leyden.guardrail.triggered"
"""Whether the check objected."""

# Ours: the exact call, on the gateway's `chat` span
CALL_ID = "leyden.call.id"
"""The engine's request id: joins the span with the engine's own log."""
POLICY = "leyden.policy.name"
POLICY_VERSION = "leyden.policy.version"
"""The version that drew the first token."""
POLICY_VERSIONS = "leyden.policy.versions"
"""Every version that drew tokens, in order, each with how many: `[version, tokens, version, tokens, ...]`."""
PROMPT_IDS = "leyden.prompt.token_ids"
"""Packed int32 (see `data.encoding.tokens`)."""
RESPONSE_IDS = "leyden.response.token_ids"
RESPONSE_LOGPROBS = "leyden.response.logprobs"
"""Packed float32: log-probability of each response token under the raw distribution (temperature 1, no truncation)."""
SAMPLING_LOGPROBS = "leyden.response.sampling_logprobs"
"""Packed float32: log-probability under the distribution the token was really drawn from."""
SAMPLING_ASKED = "leyden.sampling.asked"
"""JSON of the sampling parameters in the agent's request."""
SAMPLING_USED = "leyden.sampling.used"
"""JSON of the `Sampling` the engine used."""
CHOICE_INDEX = "leyden.choice.index"
NOT_TRAINED = "leyden.not_trained"
"""Why this call can never be a transition (for example `client disconnected`); absent when it can."""
LATENCY = "leyden.latency_seconds"
FINGERPRINT = "leyden.call.fingerprint"
"""Hash of attempt, parent and request body: a retry has that of the call it repeats."""
DIALECT = "leyden.call.dialect"
"""The API that was spoken: `chat` or `responses`."""
ENGINE_FINISH = "leyden.engine.finish_reason"
TOP_LOGPROBS = "leyden.response.top_logprobs"
"""JSON, for each response token, of the likeliest [id, raw log-probability]; only where the agent asked for them."""
LEFT_OUT = "leyden.call.left_out"
"""What of the conversation the policy was not shown, and why, one line each; absent when it saw all of it."""
RESPONSES_ANSWER = "leyden.responses.answer"
"""JSON of a stored answer of the Responses API, but for its token counts; absent where it was not to be stored."""
RESPONSES_INPUT = "leyden.responses.input"
"""JSON of the items that the request of a stored answer added to the conversation."""
RESPONSES_DELETED = "leyden.responses.deleted"
"""Id of a stored answer that the agent deleted, on a span of its own."""
CALL_RECORD = frozenset(
    {
        *(CALL_ID, CHOICE_INDEX, DIALECT, FINGERPRINT, LATENCY, LEFT_OUT, NOT_TRAINED),
        *(POLICY, POLICY_VERSION, POLICY_VERSIONS, ENGINE_FINISH, SAMPLING_ASKED, SAMPLING_USED),
        *(PROMPT_IDS, RESPONSE_IDS, RESPONSE_LOGPROBS, SAMPLING_LOGPROBS, TOP_LOGPROBS),
        *(RESPONSES_ANSWER, RESPONSES_INPUT, RESPONSES_DELETED),
    }
)
"""The record of a model call, from which learning reads: only the gateway writes it (see `store.provenance`)."""
FORGED = "leyden.forged"
"""Names in `CALL_RECORD` that somebody other than a gateway gave a span, and that were removed from it."""

# Ours: what was not kept whole
REDUCED = "leyden.reduced"
"""What of a span could not be kept whole, and why, one line each, such as `attributes.state: it holds itself`; absent
where everything is whole. The same name in the metadata of rollouts, attempts and runs, and in workers' statistics."""

# Ours: annotations
REWARD = "leyden.reward"
"""Name of a span that carries a reward: `leyden.reward.value`, and `leyden.reward.dimension.<name>` for its parts."""
REWARD_VALUE = "leyden.reward.value"
REWARD_DIMENSION = "leyden.reward.dimension."
OBSERVATION = "leyden.observation"
MESSAGE = "leyden.message"
OBJECT = "leyden.object"
EXCEPTION = "leyden.exception"
RESULT = "leyden.result"
"""What the agent returned, shortened to text."""
ROLE = "leyden.role"
CONTENT = "leyden.content"

# Private request headers from the agent's process to the gateway; values are percent-encoded
HEADER_ATTEMPT = "x-leyden-attempt"
HEADER_AGENT = "x-leyden-agent"
HEADER_NODE = "x-leyden-node"
HEADER_SPAN = "x-leyden-span"
"""Span id of the framework's own `chat` span, which becomes the parent of the gateway's."""
HEADER_TRACE = "x-leyden-trace"
HEADER_POLICY = "x-leyden-policy"
"""Name of the policy that a route chose; the gateway accepts only those it is configured with."""
HEADER_PREFIX = "x-leyden-"
