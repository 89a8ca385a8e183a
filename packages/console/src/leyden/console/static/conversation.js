/**
 * A conversation with versions of a run, as the browser keeps it for its tab.
 * @module
 */

/**
 * @typedef {object} Answer
 * @property {string} text
 * @property {string} reasoning
 * @property {[string, number][]} tokens text and log-probability of each; empty if they were not kept
 * @property {any} end what the server said at the end; null while it answers, and for an answer that broke off
 * @property {string | null} error why there is no answer, or not all of it
 */

/**
 * @typedef {object} Turn
 * @property {string} text of the user
 * @property {Record<string, Answer>} answers by version
 */

/**
 * @typedef {object} Conversation
 * @property {string} system the system message; "" for none
 * @property {number} temperature
 * @property {number} topP
 * @property {number | null} most tokens of an answer; null for as many as fit
 * @property {string} draft
 * @property {Turn[]} turns
 */

/** @returns {Conversation} */
export function newConversation() {
  return { system: "", temperature: 1, topP: 1, most: 256, draft: "", turns: [] };
}

/** @returns {Answer} */
export function newAnswer() {
  return { text: "", reasoning: "", tokens: [], end: null, error: null };
}

/**
 * How many tokens an answer has, and how many of them can be shown. The answer has as many as the record of a call has:
 * also the one that ends it, which has no text and is sent without its log-probability.
 * @param {Answer} answer
 */
export function tokenCounts({ tokens, end }) {
  const shown = tokens.length;
  return { all: Math.max(shown, end?.tokens ?? 0), shown };
}

/**
 * The messages that a version gets with a turn. Of earlier turns it gets those that it has answered itself.
 * @param {Conversation} conversation
 * @param {number} index of the turn
 * @param {string} version
 * @returns {{role: string, content: string}[]}
 */
export function messagesFor(conversation, index, version) {
  const { system, turns } = conversation;
  const earlier = turns.slice(0, index).flatMap(({ text, answers }) => {
    const answer = answers[version];
    if (!answer?.text) return [];
    return [
      { role: "user", content: text },
      { role: "assistant", content: answer.text },
    ];
  });
  const first = system.trim() ? [{ role: "system", content: system }] : [];
  return [...first, ...earlier, { role: "user", content: turns[index].text }];
}

/**
 * The conversation that the tab has kept about a run.
 * @param {Storage} storage
 * @param {string} key of the run
 * @returns {Conversation}
 */
export function restore(storage, key) {
  try {
    const kept = JSON.parse(storage.getItem(name(key)) ?? "null");
    return kept && Array.isArray(kept.turns) ? { ...newConversation(), ...kept } : newConversation();
  } catch {
    return newConversation();
  }
}

/**
 * Keeps a conversation until the tab is closed.
 * @param {Storage} storage
 * @param {string} key of the run
 * @param {Conversation} conversation
 * @returns {boolean} whether all of it was kept; a tab has room for some millions of characters
 */
export function keep(storage, key, conversation) {
  if (write(storage, key, conversation)) return true;
  const turns = conversation.turns.map(({ text, answers }) => ({ text, answers: withoutTokens(answers) }));
  write(storage, key, { ...conversation, turns });
  return false;
}

function write(storage, key, conversation) {
  try {
    storage.setItem(name(key), JSON.stringify(conversation));
    return true;
  } catch {
    return false;
  }
}

function withoutTokens(answers) {
  return Object.fromEntries(Object.entries(answers).map(([version, answer]) => [version, { ...answer, tokens: [] }]));
}

function name(key) {
  return `leyden-chat:${key}`;
}
