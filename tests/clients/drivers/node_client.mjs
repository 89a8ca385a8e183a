// Drives the `openai` package on Node: create, its stream managers, and its raw responses.
import { events, load, plain, retries, run, timeout, turnsAway } from "./node_driver.mjs";

const { default: OpenAI } = await load("openai");

const resource = (client, call) => (call.endpoint === "/responses" ? client.responses : client.chat.completions);
const options = (call) => ({ maxRetries: retries(call), ...(timeout(call) ? { timeout: timeout(call) } : {}) });
const body = (call) => ({ ...call.request, ...call.extra });

async function create(client, call) {
  const answer = await resource(client, call).create(body(call), options(call));
  if (!call.request.stream) return { ...plain(answer), request_id: answer._request_id };
  return events(call, answer, () => answer.controller.abort());
}

async function managed(client, call) {
  if (!call.request.stream || turnsAway(call)) return null;
  const stream = resource(client, call).stream(body(call), options(call));
  const types = [];
  for await (const event of stream) types.push(event.type ?? "chunk");
  const final = call.endpoint === "/responses" ? await stream.finalResponse() : await stream.finalChatCompletion();
  return { types, final: plain(final) };
}

async function raw(client, call) {
  if (call.request.stream || call.name.startsWith("cancel")) return null;
  const { data, response } = await resource(client, call).create(body(call), options(call)).withResponse();
  return { status: response.status, type: response.headers.get("content-type"), body: plain(data) };
}

function described(error) {
  const { status, code, param, type, error: sent } = error;
  return { class: error.constructor.name, message: error.message, status, code, param, type, body: sent };
}

await run(() => new OpenAI({ maxRetries: 0 }), { create, managed, raw }, described);
