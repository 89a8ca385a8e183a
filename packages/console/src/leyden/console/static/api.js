/**
 * Requests to the console's own API, and the events of a run.
 * @module
 */

/** Milliseconds after which events that were answered with an error are requested again. */
const AGAIN = 5000;

/** The server answered with an error, or did not answer. The message is one sentence for the reader. */
export class ApiError extends Error {
  /**
   * @param {string} message
   * @param {number} status HTTP status; 0 if there was no answer
   * @param {number | null} [line] of the text that was sent, from 1, which the error is about
   */
  constructor(message, status, line = null) {
    super(message);
    this.status = status;
    this.line = line;
  }
}

/**
 * Requests one path of the API and returns the JSON of the answer.
 * @param {(string | number)[]} path segments below `/api`, not yet encoded
 * @param {{query?: Record<string, string | number | null | undefined>, signal?: AbortSignal}} [options]
 * @returns {Promise<any>}
 * @throws {ApiError} with the server's sentence; an aborted request throws the browser's AbortError
 */
export async function get(path, { query = {}, signal } = {}) {
  return request(address(path, query), { signal, headers: { accept: "application/json" } });
}

/**
 * Requests an action, which only a console with `--allow-actions` accepts, and returns the JSON of the answer.
 * @param {(string | number)[]} path segments below `/api`, not yet encoded
 * @param {object} body
 * @param {AbortSignal} [signal]
 * @returns {Promise<any>}
 * @throws {ApiError} with the server's sentence; an aborted request throws the browser's AbortError
 */
export async function post(path, body, signal) {
  const headers = { accept: "application/json", "content-type": "application/json" };
  return request(address(path, {}), { method: "POST", signal, headers, body: JSON.stringify(body) });
}

/**
 * Requests an action whose answer is streamed as JSON lines.
 * @param {(string | number)[]} path segments below `/api`, not yet encoded
 * @param {object} body
 * @param {AbortSignal} signal ends the answer
 * @param {(line: any) => void} onLine
 * @returns {Promise<void>} when the answer has ended
 * @throws {ApiError} with the server's sentence; an aborted request throws the browser's AbortError
 */
export async function postLines(path, body, signal, onLine) {
  const headers = { accept: "application/x-ndjson", "content-type": "application/json" };
  const response = await send(address(path, {}), { method: "POST", signal, headers, body: JSON.stringify(body) });
  if (!response.ok || response.body === null) {
    const answer = await response.json().catch(() => null);
    throw new ApiError(answer?.error ?? withoutSentence(response.status), response.status);
  }
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read().catch((error) => {
      if (signal.aborted) throw error;
      throw new ApiError("The answer broke off. Is `leyden console` still running?", 0);
    });
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop() ?? "";
    for (const line of lines) onLine(JSON.parse(line));
  }
}

async function send(url, options) {
  try {
    return await fetch(url, { credentials: "same-origin", ...options });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new ApiError("The console's server does not answer. Is `leyden console` still running?", 0);
  }
}

async function request(url, options) {
  const { signal } = options;
  const response = await send(url, options);
  const body = await response.json().catch(() => null);
  if (signal?.aborted) throw signal.reason;
  if (response.ok && body !== null) return body;
  throw new ApiError(body?.error ?? withoutSentence(response.status), response.status, body?.line);
}

/**
 * Calls `onChange` for each change of a run until `signal` is aborted. While the page is hidden no connection is held,
 * because a browser allows few of them to one server and each tab would hold one.
 * @param {string} key of the run
 * @param {AbortSignal} signal
 * @param {(change: {lines: number, generation: string, state: string, began: number | null, step: number,
 *     ends: number | null, rollouts: number | null, rows: number, problem: string}) => void} onChange `ends` is when the
 *     run will end, `rows` counts the changes of rows of rollouts, and `problem` is why they cannot be read now
 * @param {(message: string) => void} onProblem the server cannot read the run now, or does not answer; the next change
 *     ends that
 */
export function watchRun(key, signal, onChange, onProblem) {
  watch(["runs", key, "events"], signal, onChange, onProblem);
}

/**
 * Calls `onChange` for each change of a job until it has ended or `signal` is aborted.
 * @param {string} id of the job
 * @param {AbortSignal} signal
 * @param {(job: any) => void} onChange the job, without its result
 * @param {(message: string) => void} onProblem
 */
export function watchJob(id, signal, onChange, onProblem) {
  const ended = new AbortController();
  const change = (job) => {
    if (job.ended !== null) ended.abort();
    onChange(job);
  };
  watch(["jobs", id, "events"], AbortSignal.any([signal, ended.signal]), change, onProblem);
}

/**
 * Calls `onChange` for each change of a study until `signal` is aborted.
 * @param {string} key of the study
 * @param {AbortSignal} signal
 * @param {(change: any) => void} onChange
 * @param {(message: string) => void} onProblem
 */
export function watchStudy(key, signal, onChange, onProblem) {
  watch(["studies", key, "events"], signal, onChange, onProblem);
}

function watch(path, signal, onChange, onProblem) {
  /** @type {EventSource | null} */
  let source = null;
  let said = "";
  const say = (message) => {
    if (message === said) return; // the page draws it as an alert, which a screen reader reads each time
    said = message;
    onProblem(message);
  };
  /** The events do not say why they broke off; a request of what they are about does. */
  const failed = async (broken) => {
    const why = await get(path.slice(0, -1), { signal }).then(
      () => "",
      (error) => error.message,
    );
    if (signal.aborted || source !== broken || broken.readyState === EventSource.OPEN) return;
    if (why) say(why);
    // a browser connects again by itself, but not after an answer with an error, such as to an old token
    if (broken.readyState === EventSource.CLOSED) setTimeout(() => source === broken && (close(), adjust()), AGAIN);
  };
  const close = () => {
    source?.close();
    source = null;
  };
  const adjust = () => {
    if (document.hidden || signal.aborted) return close();
    if (source) return;
    const opened = new EventSource(address(path, {}), { withCredentials: true });
    source = opened;
    opened.addEventListener("change", (event) => {
      said = "";
      onChange(JSON.parse(event.data));
    });
    opened.addEventListener("problem", (event) => say(JSON.parse(event.data).error));
    opened.addEventListener("error", () => failed(opened));
  };
  document.addEventListener("visibilitychange", adjust, { signal });
  signal.addEventListener("abort", close, { once: true });
  adjust();
}

let about = null;

/**
 * Whether the console was started with `--allow-actions`.
 * @returns {Promise<boolean>}
 */
export async function actionsAllowed() {
  about ??= get(["console"]);
  try {
    return (await about).actions;
  } catch (error) {
    about = null;
    throw error;
  }
}

function withoutSentence(status) {
  if (status === 403)
    return "The console's token is missing or has changed: open the address that `leyden console` printed.";
  return `The console's server answered with status ${status}.`;
}

function address(path, query) {
  const url = new URL(path.map((part) => encodeURIComponent(part)).join("/"), new URL("api/", document.baseURI));
  for (const [name, value] of Object.entries(query)) {
    if (value !== null && value !== undefined && value !== "") url.searchParams.set(name, String(value));
  }
  return url;
}
