/**
 * Texts that the reader has edited and not saved, kept in this tab of the browser.
 * @module
 */

const PREFIX = "leyden.draft:";

/**
 * The edited text of a file, or null.
 * @param {string} owner whose file it is, such as the key of a run
 * @param {string} file
 * @returns {string | null}
 */
export function draft(owner, file) {
  try {
    return sessionStorage.getItem(name(owner, file));
  } catch {
    return null;
  }
}

/**
 * Keeps an edited text, or forgets it.
 * @param {string} owner
 * @param {string} file
 * @param {string | null} text null: nothing to keep
 * @returns {boolean} whether the browser keeps it
 */
export function keepDraft(owner, file, text) {
  try {
    if (text === null) sessionStorage.removeItem(name(owner, file));
    else sessionStorage.setItem(name(owner, file), text);
    return true;
  } catch {
    return false;
  }
}

function name(owner, file) {
  return PREFIX + JSON.stringify([owner, file]);
}
