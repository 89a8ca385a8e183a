"""Names of span attributes: the OpenTelemetry GenAI conventions, and Leyden's own `leyden.*`.

The constants that the OpenTelemetry package publishes are marked as moved, so the names are defined here.
"""

# OpenTelemetry GenAI conventions
OPERATION = "gen_ai.operation.name"
"""One of `chat`, `text_completion`, `invoke_agent`, `execute_tool`, `invoke_workflow`."""
MODEL_CALLS = ("chat", "text_completion")
"""Operations of a framework's or the gateway's span of a model call."""
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
PROMPT_EDITS = "leyden.prompt.edits"
"""JSON of the prompt texts that were replaced: for each, the component, its place, and the agent's `own` text.

`gen_ai.input.messages` and `gen_ai.tool.definitions` then have the new texts, which the model read.
"""
CONTENT_ATTRIBUTES = frozenset(
    {INPUT_MESSAGES, OUTPUT_MESSAGES, TOOL_DEFINITIONS, TOOL_ARGUMENTS, TOOL_RESULT, PROMPT_EDITS}
)
"""Attributes that may hold the text of a conversation; sent to another tracing backend only on request."""

# Leyden's own: agent, node and attempt
ROLLOUT_ID = "leyden.rollout.id"
ATTEMPT_ID = "leyden.attempt.id"
NODE = "leyden.node"
"""Graph node that made the call, where the framework has nodes."""
FRAMEWORK = "leyden.framework"
HANDOFF = "leyden.handoff"
"""Operation of a span that records a handoff: an agent passes the conversation, or a task, to another agent."""
HANDOFF_FROM = "leyden.handoff.from"
HANDOFF_TO = "leyden.handoff.to"
GUARDRAIL = "leyden.guardrail"
"""Operation of a span around a check of an agent's input or output."""
GUARDRAIL_TRIGGERED = "leyden.guardrail.triggered"
"""Whether the check rejected the input or output."""

# Leyden's own: the exact call, on the gateway's `chat` span
CALL_ID = "leyden.call.id"
"""The engine's request id, which joins the span with the engine's own log."""
POLICY = "leyden.policy.name"
POLICY_VERSION = "leyden.policy.version"
"""Policy version that generated the first token."""
POLICY_VERSIONS = "leyden.policy.versions"
"""All versions that generated tokens, in order, with their counts: `[version, tokens, version, tokens, ...]`."""
PROMPT_IDS = "leyden.prompt.token_ids"
"""Packed int32 (see `data.encoding.tokens`)."""
PROMPT_INDEX = "leyden.prompt.index"
"""Index of the prompt among those of its request; only where one request has several prompts."""
PROMPT_LOGPROBS = "leyden.prompt.logprobs"
"""Packed float32: raw log-probability of each prompt token after the first; only where the response repeats them."""
PROMPT_IMAGES = "leyden.prompt.images"
"""JSON of the images in the prompt, each as [SHA-256 of its file, index of its first placeholder, placeholders]."""
IMAGE_DIGEST = "leyden.image.digest"
"""SHA-256, in hexadecimal, of an image file that prompts of the attempt have, on a span of its own."""
IMAGE_DATA = "leyden.image.data"
"""The image file, as bytes, on the same span."""
RESPONSE_IDS = "leyden.response.token_ids"
RESPONSE_LOGPROBS = "leyden.response.logprobs"
"""Packed float32: log-probability of each response token at temperature 1, with nothing truncated."""
SAMPLING_LOGPROBS = "leyden.response.sampling_logprobs"
"""Packed float32: log-probability of each response token under the distribution it was sampled from."""
SAMPLING_KEPT = "leyden.sampling.kept"
"""Packed sets of the tokens that top-p, top-k and min-p left at each position (see `data.encoding.token_sets`)."""
SAMPLING_ASKED = "leyden.sampling.asked"
"""JSON of the sampling parameters in the agent's request."""
SAMPLING_USED = "leyden.sampling.used"
"""JSON of the `Sampling` that the engine used; with the hash of a long grammar in its place."""
SAMPLING_GRAMMAR = "leyden.sampling.grammar"
"""Text of the grammar; only where it is long (see `data.sampling`)."""
CHOICE_INDEX = "leyden.choice.index"
NOT_TRAINED = "leyden.not_trained"
"""Why this call can never be a transition (for example `client disconnected`); absent when it can."""
LATENCY = "leyden.latency_seconds"
FINGERPRINT = "leyden.call.fingerprint"
"""Hash of attempt, parent and request body: a retry has the same hash as the original call."""
DIALECT = "leyden.call.dialect"
"""API of the request: `chat`, `completions` or `responses`."""
ENGINE_FINISH = "leyden.engine.finish_reason"
TOP_LOGPROBS = "leyden.response.top_logprobs"
"""JSON, for each response token, of the likeliest [id, raw log-probability]; only where the agent requested them."""
LEFT_OUT = "leyden.call.left_out"
"""Parts of the conversation that the policy was not given, with reasons, one line each; absent when it had all."""
RESPONSES_ANSWER = "leyden.responses.answer"
"""JSON of a stored answer of the Responses API, without its token counts; absent where it was not to be stored."""
RESPONSES_INPUT = "leyden.responses.input"
"""JSON of the items that the request of a stored answer added to the conversation."""
RESPONSES_DELETED = "leyden.responses.deleted"
"""Id of a stored answer that the agent deleted, on a separate span."""
CALL_RECORD = frozenset(
    {
        *(CALL_ID, CHOICE_INDEX, DIALECT, FINGERPRINT, LATENCY, LEFT_OUT, NOT_TRAINED),
        *(POLICY, POLICY_VERSION, POLICY_VERSIONS, ENGINE_FINISH, SAMPLING_ASKED, SAMPLING_USED),
        *(SAMPLING_GRAMMAR, SAMPLING_KEPT, PROMPT_EDITS),
        *(PROMPT_IDS, PROMPT_INDEX, PROMPT_LOGPROBS, RESPONSE_IDS, RESPONSE_LOGPROBS, SAMPLING_LOGPROBS, TOP_LOGPROBS),
        *(RESPONSES_ANSWER, RESPONSES_INPUT, RESPONSES_DELETED),
        *(PROMPT_IMAGES, IMAGE_DIGEST, IMAGE_DATA),
    }
)
"""The record of a model call, from which training reads. Only the gateway writes it (see `store.provenance`)."""
FORGED = "leyden.forged"
"""Names in `CALL_RECORD` that a process other than the gateway set on a span, and that the store removed."""

# Leyden's own: parts that were shortened or left out
REDUCED = "leyden.reduced"
"""Parts of a span that could not be kept whole, with reasons, one line each; absent where everything is whole.

Example: `attributes.state: it contains itself`. The same name is a key in the metadata of rollouts, attempts and runs,
and in workers' statistics.
"""

# Leyden's own: annotations
REWARD = "leyden.reward"
"""Name of a span that carries a reward: `leyden.reward.value`, and `leyden.reward.dimension.<name>` for its parts."""
REWARD_VALUE = "leyden.reward.value"
REWARD_DIMENSION = "leyden.reward.dimension."
REWARD_FEEDBACK = "leyden.reward.feedback"
"""The reward function's reason for the reward, as text; absent if it gave none."""
OBSERVATION = "leyden.observation"
ANNOTATION = "leyden.annotation"
"""Name of a span with attributes that the agent gave."""
OPERATION_SPAN = "leyden.operation"
"""Name of a span around a part of the agent, where its author gave none."""
MESSAGE = "leyden.message"
OBJECT = "leyden.object"
STACK_TRACE = "exception.stacktrace"
"""Traceback of an exception, as Python prints it."""
EXCEPTION = "leyden.exception"
RESULT = "leyden.result"
"""Return value of the agent, shortened to text."""
FINAL_OUTPUT = "leyden.result.final_output"
"""The part of a framework's result that its users read, shortened to text; not recorded for other results."""
RESULT_TYPE = "leyden.result.type"
"""Name of the result's class, with its module unless it is a builtin class. Earlier versions did not record it."""
RESULT_FORM = "leyden.result.form"
"""JSON of the result as `data.plain.recorded_form` writes it. Absent where `leyden.result` is the whole result, a text.
"""
RESULT_NOT_KEPT = "leyden.result.not_kept"
"""Why the result has no recorded form; absent where it has one, and where `leyden.result` is the whole result."""
ROLE = "leyden.role"
CONTENT = "leyden.content"

# Private request headers from the agent's process to the gateway; values are percent-encoded
HEADER_ATTEMPT = "x-leyden-attempt"
HEADER_AGENT = "x-leyden-agent"
HEADER_NODE = "x-leyden-node"
HEADER_SPAN = "x-leyden-span"
"""Span id of the framework's own `chat` span, which becomes the parent of the gateway's span."""
HEADER_TRACE = "x-leyden-trace"
HEADER_POLICY = "x-leyden-policy"
"""Name of the policy that a route chose; the gateway accepts only the names in its configuration."""
HEADER_PREFIX = "x-leyden-"
