// Runs a plan of calls with a client library on Node, and prints what it saw: the counterpart of driver.py.
// Wire routing is not for Node, so there is no attempt to open.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

export const STOP_AFTER = 3;
const TIMEOUT_MS = 1000;

const installed = createRequire(pathToFileURL(`${process.argv[2]}/`));
export const load = (name) => import(pathToFileURL(installed.resolve(name)));
export const plain = (value) => JSON.parse(JSON.stringify(value));

export const turnsAway = (call) => call.name.endsWith("cancel_stream");
export const timeout = (call) => (call.name.endsWith("cancel_timeout") ? TIMEOUT_MS : undefined);
export const retries = (call) => (/_retry(_stream)?$/.test(call.name) ? 1 : 0);

// Every event of a stream as the client shows it, to its end or to where the client turns away.
export async function events(call, answer, stop) {
  const seen = [];
  for await (const event of answer) {
    seen.push(plain(event));
    if (turnsAway(call) && seen.length === STOP_AFTER) {
      stop();
      break;
    }
  }
  return { events: seen };
}

const answered = {};

function continuing(request, way) {
  if (!request.previous_response_id?.startsWith("$")) return request;
  const earlier = answered[`${way} ${request.previous_response_id.slice(1)}`];
  const id = (earlier?.body ?? earlier?.answer ?? earlier)?.id;
  return id ? { ...request, previous_response_id: id } : null;
}

async function readPlan() {
  const chunks = [];
  for await (const chunk of process.stdin) chunks.push(chunk);
  return JSON.parse(Buffer.concat(chunks).toString());
}

// `connect` returns a client for the environment as it is; each of `variants` makes a call with it, or returns null.
export async function run(connect, variants, described) {
  const plan = await readPlan();
  for (const setting of plan.settings) {
    for (const exchange of plan.exchanges) {
      const environment = exchange.apart ? setting.apart[exchange.name] : setting.environment;
      if (environment === undefined) continue;
      Object.assign(process.env, environment);
      const client = connect();
      for (const [variant, ask] of Object.entries(variants)) {
        const way = `${setting.name} ${variant}`;
        const request = continuing(exchange.request, way);
        if (request === null) continue;
        const seen = await ask(client, { ...exchange, request }).catch((error) => ({ error: plain(described(error)) }));
        if (seen === null) continue;
        answered[`${way} ${exchange.name}`] = seen;
        const line = { setting: setting.name, variant, exchange: exchange.name, seen };
        process.stdout.write(`${JSON.stringify(line)}\n`);
      }
    }
  }
}
