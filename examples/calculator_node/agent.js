// A small agent that answers word problems with a calculator: `node agent.js "What is 2 plus 3?"`.

import OpenAI from "openai";

const client = new OpenAI();

const tools = [
  {
    type: "function",
    function: {
      name: "calculator",
      description: "Evaluate an arithmetic expression.",
      parameters: {
        properties: { expression: { type: "string" } },
        required: ["expression"],
        type: "object",
      },
      parse: JSON.parse,
      function: calculator,
    },
  },
];

function calculator({ expression }) {
  if (typeof expression !== "string" || !/^[\d+\-* ()]{1,40}$/.test(expression)) {
    return "error: only whole numbers, +, - and * are allowed";
  }
  try {
    return String(Function(`"use strict"; return (${expression})`)());
  } catch (error) {
    return `error: ${error.message}`;
  }
}

async function run(question) {
  const messages = [
    { role: "system", content: "Use the calculator, then reply 'Answer: <number>'." },
    { role: "user", content: question },
  ];
  const runner = client.chat.completions.runTools({ model: "gpt-4.1-mini", messages, tools, temperature: 0 });
  return await runner.finalContent();
}

try {
  console.log(await run(process.argv[2]));
} catch (error) {
  console.error(`calculator: ${error.message}`);
  process.exitCode = 1;
}
