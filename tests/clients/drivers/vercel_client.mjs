// Drives Vercel's `ai` with its providers: generateText and streamText, over each API that a provider speaks.
// A request is written as `ai` takes it; what `ai` sends is its own.
import { load, plain, retries, run, STOP_AFTER, timeout, turnsAway } from "./node_driver.mjs";

const { generateText, jsonSchema, Output, stepCountIs, streamText, tool } = await load("ai");
const { createAnthropic } = await load("@ai-sdk/anthropic");
const { createOpenAI } = await load("@ai-sdk/openai");
const { createOpenAICompatible } = await load("@ai-sdk/openai-compatible");

const text = (content) => (typeof content === "string" ? content : content.map((part) => part.text ?? "").join(""));

function connect() {
  const openai = { baseURL: process.env.OPENAI_BASE_URL, apiKey: process.env.OPENAI_API_KEY };
  const compatible = { ...openai, name: "compatible", includeUsage: true, supportsStructuredOutputs: true };
  const anthropic = { baseURL: `${process.env.ANTHROPIC_BASE_URL}/v1`, apiKey: process.env.ANTHROPIC_API_KEY };
  return {
    openai: createOpenAI(openai),
    compatible: createOpenAICompatible(compatible),
    anthropic: createAnthropic(anthropic),
  };
}

function toolOf(given) {
  const { name, description, parameters, input_schema: schema } = given.function ?? given;
  return [name, tool({ description, inputSchema: jsonSchema(parameters ?? schema) })];
}

function choiceOf(choice) {
  if (typeof choice !== "object") return choice;
  const named = choice.function?.name ?? choice.name;
  return named ? { type: "tool", toolName: named } : choice.type === "any" ? "required" : choice.type;
}

const call = (id, name, input) => ({ type: "tool-call", toolCallId: id, toolName: name, input });
const result = (id, name, value) => ({
  role: "tool",
  content: [{ type: "tool-result", toolCallId: id, toolName: name, output: { type: "text", value } }],
});

// A conversation of any of the three APIs as `ai` takes it.
function messagesOf(request) {
  const items = request.messages ?? request.input;
  if (typeof items === "string") return [{ role: "user", content: items }];
  const names = {};
  return items.flatMap((item) => {
    if (item.type === "function_call") {
      names[item.call_id] = item.name;
      return [{ role: "assistant", content: [call(item.call_id, item.name, JSON.parse(item.arguments))] }];
    }
    if (item.type === "function_call_output") return [result(item.call_id, names[item.call_id], item.output)];
    if (item.role === "tool") return [result(item.tool_call_id, names[item.tool_call_id], item.content)];
    if (item.role === "assistant") return [{ role: "assistant", content: partsOf(item, names) }];
    const answers = Array.isArray(item.content) ? item.content.filter((part) => part.type === "tool_result") : [];
    if (answers.length) return answers.map((part) => result(part.tool_use_id, names[part.tool_use_id], part.content));
    return [{ role: "user", content: text(item.content) }];
  });
}

function partsOf(message, names) {
  const parts = message.reasoning_content ? [{ type: "reasoning", text: message.reasoning_content }] : [];
  for (const block of Array.isArray(message.content) ? message.content : []) {
    if (block.type === "text") parts.push({ type: "text", text: block.text });
    if (block.type === "thinking") {
      const { thinking, signature } = block;
      parts.push({ type: "reasoning", text: thinking, providerOptions: { anthropic: { signature } } });
    }
    if (block.type === "tool_use") {
      names[block.id] = block.name;
      parts.push(call(block.id, block.name, block.input));
    }
  }
  if (typeof message.content === "string") parts.push({ type: "text", text: message.content });
  for (const { id, function: wanted } of message.tool_calls ?? []) {
    names[id] = wanted.name;
    parts.push(call(id, wanted.name, JSON.parse(wanted.arguments)));
  }
  return parts;
}

function outputOf(request) {
  const schema =
    request.response_format?.json_schema?.schema ??
    request.text?.format?.schema ??
    request.output_config?.format?.schema;
  return schema ? { output: Output.object({ schema: jsonSchema(schema), name: "weather" }) } : {};
}

function argumentsOf(model, { request, name }) {
  const system = request.system ?? request.instructions;
  const own = (request.messages ?? []).filter((message) => message.role === "system").map((one) => one.content);
  const kept = { ...request, messages: request.messages?.filter((message) => message.role !== "system") };
  return {
    model,
    instructions: system ?? own[0],
    messages: messagesOf(kept),
    maxOutputTokens: request.max_tokens ?? request.max_completion_tokens ?? request.max_output_tokens,
    stopSequences: request.stop ? [request.stop].flat() : request.stop_sequences,
    temperature: request.temperature,
    maxRetries: retries({ name }),
    stopWhen: stepCountIs(1),
    ...(request.tools ? { tools: Object.fromEntries(request.tools.map(toolOf)) } : {}),
    ...(request.tool_choice ? { toolChoice: choiceOf(request.tool_choice) } : {}),
    ...outputOf(request),
    providerOptions: {
      anthropic: {
        ...(request.thinking ? { thinking: { ...request.thinking, budgetTokens: request.thinking.budget_tokens } } : {}),
        structuredOutputMode: "outputFormat",
      },
      openai: {
        store: request.store,
        include: request.include,
        logprobs: request.top_logprobs ?? request.logprobs,
        previousResponseId: request.previous_response_id,
      },
    },
  };
}

// What a program reads of a result, without the request and the headers, which are another matter.
function shown(result) {
  const { content, finishReason, rawFinishReason, usage, warnings, providerMetadata, toolCalls } = result;
  const { reasoningText, text: said, response } = result;
  const answer = { id: response.id, model: response.modelId };
  return plain({
    text: said, reasoningText, content, toolCalls, finishReason, rawFinishReason, usage, warnings, providerMetadata, answer,
  });
}

const LEFT_OUT = new Set(["start", "start-step", "response-metadata"]);

async function ask(model, request) {
  if (model === null) return null;
  const limit = timeout(request) ? { abortSignal: AbortSignal.timeout(timeout(request)) } : {};
  if (!request.request.stream) return shown(await generateText({ ...argumentsOf(model, request), ...limit }));
  const away = new AbortController();
  let failure;
  const answer = streamText({
    ...argumentsOf(model, request),
    abortSignal: away.signal,
    onError: ({ error }) => {
      failure = error;
    },
  });
  const parts = [];
  for await (const part of answer.stream ?? answer.fullStream) {
    if (LEFT_OUT.has(part.type)) continue;
    if (part.type === "error") throw part.error;
    const { response, request: _, performance: __, ...rest } = part;
    parts.push(plain({ ...rest, ...(response ? { answer: { id: response.id, model: response.modelId } } : {}) }));
    if (turnsAway(request) && parts.length === STOP_AFTER) {
      away.abort();
      break;
    }
  }
  if (failure !== undefined) throw failure;
  return { parts };
}

function described(error) {
  const last = error.lastError ?? error;
  const { statusCode, isRetryable, data } = last;
  return { class: error.constructor.name, of: last.constructor.name, message: last.message, statusCode, isRetryable, data };
}

const chat = (client, call) => ask(call.endpoint === "/chat/completions" ? client.openai.chat(call.request.model) : null, call);
const compatible = (client, call) =>
  ask(call.endpoint === "/chat/completions" ? client.compatible.chatModel(call.request.model) : null, call);
const responses = (client, call) =>
  ask(call.endpoint === "/responses" ? client.openai.responses(call.request.model) : null, call);
const messages = (client, call) => ask(call.endpoint === "/messages" ? client.anthropic(call.request.model) : null, call);

await run(connect, { chat, compatible, responses, messages }, described);
