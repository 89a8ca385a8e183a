/**
 * Routes: the part of the address after `#`. Every view, filter and selection of the console has its own.
 * @module
 */

/** @typedef {{path: string[], query: URLSearchParams}} Route */
/** @typedef {Record<string, string | number | null | undefined>} Query */

/** The view of an address that names none. */
const FIRST = ["runs"];

/**
 * @param {string} hash such as `#/runs/a?text=b`
 * @returns {Route}
 */
export function parse(hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  const parts = path.split("/").filter(Boolean).map(decode);
  return { path: parts.length ? parts : FIRST, query: new URLSearchParams(query) };
}

/**
 * The link to a view.
 * @param {(string | number)[]} path
 * @param {Query} [query] values that are null, undefined or "" are left out
 */
export function link(path, query = {}) {
  const search = withChanges(new URLSearchParams(), query).toString();
  return `#/${path.map((part) => encodeURIComponent(part)).join("/")}${search && `?${search}`}`;
}

/**
 * Changes the query of the present address without a new entry in the browser's history.
 * @param {Query} changes null or "" removes a value
 */
export function remember(changes) {
  const route = parse(location.hash);
  const hash = link(route.path, Object.fromEntries(withChanges(route.query, changes)));
  if (hash !== location.hash) history.replaceState(null, "", hash);
}

/** @param {string} hash */
export function go(hash) {
  location.hash = hash;
}

/** Shows the view of the present address anew. */
export function redraw() {
  window.dispatchEvent(new HashChangeEvent("hashchange"));
}

/**
 * The parameters of a path that has the form of `pattern` (`["runs", ":key"]`), or null.
 * @param {string[]} pattern
 * @param {string[]} path
 * @returns {Record<string, string> | null}
 */
export function match(pattern, path) {
  if (pattern.length !== path.length) return null;
  /** @type {Record<string, string>} */
  const parameters = {};
  for (const [index, part] of pattern.entries()) {
    if (part.startsWith(":")) parameters[part.slice(1)] = path[index];
    else if (part !== path[index]) return null;
  }
  return parameters;
}

function withChanges(search, changes) {
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === undefined || value === "") search.delete(name);
    else search.set(name, String(value));
  }
  return search;
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
