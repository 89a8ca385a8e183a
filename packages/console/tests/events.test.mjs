/** Tests of the events that a page follows, with an `EventSource` and a server of their own. */

import assert from "node:assert/strict";
import test from "node:test";

const sources = [];

class Source extends EventTarget {
  static CONNECTING = 0;
  static OPEN = 1;
  static CLOSED = 2;

  constructor(url) {
    super();
    this.url = String(url);
    this.readyState = Source.OPEN;
    sources.push(this);
  }

  send(name, data) {
    this.dispatchEvent(Object.assign(new Event(name), { data: JSON.stringify(data) }));
  }

  async fail(readyState) {
    this.readyState = readyState;
    this.dispatchEvent(new Event("error"));
    await new Promise((resolve) => setImmediate(resolve));
  }

  close() {
    this.readyState = Source.CLOSED;
  }
}

Object.assign(globalThis, {
  EventSource: Source,
  document: Object.assign(new EventTarget(), { hidden: false, baseURI: "http://console/" }),
});
const { watchRun } = await import("../src/leyden/console/static/api.js");

const answers = (status, body) => (globalThis.fetch = async () => new Response(body, { status }));
const noServer = () => (globalThis.fetch = async () => Promise.reject(new TypeError("Failed to fetch")));

function watched(t) {
  const [said, changes, end] = [[], [], new AbortController()];
  t.after(() => end.abort());
  watchRun("a", end.signal, (change) => changes.push(change), (message) => said.push(message));
  return { said, changes, source: sources.at(-1) };
}

test("a page says once that the server does not answer, and again after it was back", async (t) => {
  const { said, changes, source } = watched(t);
  noServer();
  await source.fail(Source.CONNECTING);
  await source.fail(Source.CONNECTING);
  assert.deepEqual(said, ["The console's server does not answer. Is `leyden console` still running?"]);

  source.send("change", { step: 1 });
  assert.deepEqual(changes, [{ step: 1 }]);
  await source.fail(Source.CONNECTING);
  assert.equal(said.length, 2);
});

test("a connection that only broke off is no problem", async (t) => {
  const { said, source } = watched(t);
  answers(200, "{}");
  await source.fail(Source.CONNECTING);
  assert.deepEqual(said, []);
});

test("a page says that the token has changed, and connects again until it is accepted", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const { said, source } = watched(t);
  answers(403, "This console needs its token");
  await source.fail(Source.CLOSED);
  assert.match(said[0], /token is missing or has changed/);
  assert.equal(sources.at(-1), source);

  t.mock.timers.tick(5000);
  assert.notEqual(sources.at(-1), source, "another connection");
  assert.equal(sources.at(-1).url, "http://console/api/runs/a/events");
});
