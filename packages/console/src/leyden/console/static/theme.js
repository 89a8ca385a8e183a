/**
 * Light or dark: as the system says, unless the reader chose one. The choice is remembered.
 * @module
 */

const NAME = "leyden-theme";
const NEXT = { auto: "light", light: "dark", dark: "auto" };
const LABEL = { auto: "Auto", light: "Light", dark: "Dark" };
const SPOKEN = { auto: "Colours: auto, as the system", light: "Colours: light", dark: "Colours: dark" };

apply(chosen());
document.addEventListener("DOMContentLoaded", () => apply(chosen()));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", announce);

/** Changes to the next choice: as the system, light, dark. */
export function nextTheme() {
  const choice = NEXT[chosen()];
  try {
    localStorage.setItem(NAME, choice);
  } catch {
    // A browser may forbid storage; the choice then lasts until the page is reloaded.
  }
  apply(choice);
  announce();
}

/**
 * The value of a colour of the style sheets in the present theme.
 * @param {string} name such as `--series-1`
 */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/**
 * Calls `listener` when the colours change, until `signal` is aborted.
 * @param {AbortSignal} signal
 * @param {() => void} listener
 */
export function onTheme(signal, listener) {
  document.addEventListener("leyden:theme", listener, { signal });
}

function chosen() {
  const shown = document.documentElement.dataset.theme;
  if (shown) return shown;
  try {
    return localStorage.getItem(NAME) in NEXT ? localStorage.getItem(NAME) : "auto";
  } catch {
    return "auto";
  }
}

function apply(choice) {
  document.documentElement.dataset.theme = choice;
  const button = document.getElementById("theme");
  if (!button) return;
  button.textContent = LABEL[choice];
  button.setAttribute("aria-label", SPOKEN[choice]);
}

function announce() {
  document.dispatchEvent(new Event("leyden:theme"));
}
