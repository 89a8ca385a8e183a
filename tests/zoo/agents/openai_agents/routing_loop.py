r"""A writer and a judge in a loop, until the judge passes it: the pattern of a model as a judge.
---
run: main
author: await main(task)
tasks:
  - topic: Lighthouse
  - topic: Submarine
model:
  - system: You generate
    role: user
    when: outline on (\w+)
    say: 'Outline: \1 one'
  - system: You evaluate
    when: one$
    say: 'needs_improvement: say more'
  - system: You generate
    when: say more
    seen: outline on (\w+)
    say: 'Outline: \1 two'
  - system: You evaluate
    say: pass
calls: 4
result: [Lighthouse two, Submarine two]
agents: [generator, evaluator]
"""

from agents import Agent, ItemHelpers, Runner, TResponseInputItem, trace

generator = Agent(name="generator", instructions="You generate a short outline. Use feedback to improve it.")
evaluator = Agent(name="evaluator", instructions="You evaluate an outline. Answer 'pass' or give feedback.")


async def main(task):
    items: list[TResponseInputItem] = [{"content": f"Write an outline on {task['topic']}", "role": "user"}]
    with trace("LLM as a judge"):
        while True:
            result = await Runner.run(generator, items)
            items = result.to_input_list()
            outline = ItemHelpers.text_message_outputs(result.new_items)
            verdict = (await Runner.run(evaluator, items)).final_output
            if verdict == "pass":
                return outline
            items.append({"content": f"Feedback: {verdict}", "role": "user"})
