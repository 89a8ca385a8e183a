/** Tests of the conversation of the chat page. Run them with `node --test packages/console/tests/conversation.test.mjs`. */

import assert from "node:assert/strict";
import test from "node:test";

const { keep, messagesFor, newAnswer, newConversation, restore, tokenCounts } = await import(
  "../src/leyden/console/static/conversation.js"
);

/** A tab's storage with room for so many characters. */
function storage(room = Infinity) {
  const kept = new Map();
  return {
    getItem: (name) => kept.get(name) ?? null,
    setItem: (name, value) => {
      if (value.length > room) throw new Error("full");
      kept.set(name, value);
    },
  };
}

const answered = (text) => ({ ...newAnswer(), text, tokens: [[text.repeat(50), -0.5]] });

test("a version gets the earlier messages that it has answered itself", () => {
  const turns = [
    { text: "one", answers: { 6: answered("a"), 0: answered("b") } },
    { text: "two", answers: { 6: answered("c"), 0: newAnswer() } },
    { text: "three", answers: {} },
  ];
  const conversation = { ...newConversation(), system: "be brief", turns };
  const texts = (version) => messagesFor(conversation, 2, version).map((one) => one.content);
  assert.deepEqual(texts("6"), ["be brief", "one", "a", "two", "c", "three"]);
  assert.deepEqual(texts("0"), ["be brief", "one", "b", "three"]);
  assert.deepEqual(messagesFor(conversation, 0, "6"), [
    { role: "system", content: "be brief" },
    { role: "user", content: "one" },
  ]);
});

test("a conversation is kept for its run, without tokens if there is no room for them", () => {
  const conversation = { ...newConversation(), turns: [{ text: "one", answers: { 6: answered("abc") } }] };
  const roomy = storage();
  assert.equal(keep(roomy, "a", conversation), true);
  assert.deepEqual(restore(roomy, "a"), conversation);
  assert.deepEqual(restore(roomy, "b"), newConversation());
  const small = storage(250);
  assert.equal(keep(small, "a", conversation), false);
  assert.deepEqual(restore(small, "a").turns[0].answers[6], { ...answered("abc"), tokens: [] });
});

test("what the tab has kept and is no conversation is left out", () => {
  for (const broken of ["{", "null", "[]", '{"turns": 1}']) {
    const tab = storage();
    tab.setItem("leyden-chat:a", broken);
    assert.deepEqual(restore(tab, "a"), newConversation());
  }
});

test("the token that ends an answer counts, as in the record of a call, also if it has no text", () => {
  const tokens = [
    ["a", -0.5],
    ["b", -0.5],
  ];
  assert.deepEqual(tokenCounts({ ...newAnswer(), tokens, end: { tokens: 3 } }), { all: 3, shown: 2 });
  assert.deepEqual(tokenCounts({ ...newAnswer(), tokens, end: { tokens: 2 } }), { all: 2, shown: 2 });
  assert.deepEqual(tokenCounts({ ...newAnswer(), tokens, end: null }), { all: 2, shown: 2 }, "it broke off");
});
