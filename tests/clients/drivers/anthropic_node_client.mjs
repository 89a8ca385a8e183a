// Drives `@anthropic-ai/sdk` on Node: create, its stream manager, and its raw responses.
import { events, load, plain, retries, run, turnsAway } from "./node_driver.mjs";

const { default: Anthropic } = await load("@anthropic-ai/sdk");

const options = (call) => ({ maxRetries: retries(call) });
const body = (call) => ({ ...call.request, ...call.extra });

async function create(client, call) {
  const answer = await client.messages.create(body(call), options(call));
  if (!call.request.stream) return { ...plain(answer), request_id: answer._request_id };
  return events(call, answer, () => answer.controller.abort());
}

async function managed(client, call) {
  if (!call.request.stream || turnsAway(call)) return null;
  const { stream: _, ...fields } = body(call);
  const stream = client.messages.stream(fields, options(call));
  const types = [];
  for await (const event of stream) types.push(event.type);
  return { types, final: plain(await stream.finalMessage()) };
}

async function raw(client, call) {
  if (call.request.stream) return null;
  const { data, response } = await client.messages.create(body(call), options(call)).withResponse();
  return { status: response.status, type: response.headers.get("content-type"), body: plain(data) };
}

function described(error) {
  const { status, type, requestID, error: sent } = error;
  return { class: error.constructor.name, message: error.message, status, type, requestID, body: sent };
}

await run(() => new Anthropic({ maxRetries: 0 }), { create, managed, raw }, described);
