r"""Three runs at once by asyncio.gather under one trace, and an agent that picks the best.
---
run: main
author: asyncio.run(main(task))
tasks:
  - text: Lighthouse
  - text: Submarine
model:
  - system: You translate
    when: (\w+)
    say: el \1
  - system: You pick
    seen: 'Input: (\w+)'
    say: The best is el \1.
calls: 4
result: [The best is el Lighthouse., The best is el Submarine.]
agents: [spanish_agent, translation_picker]
"""

import asyncio

from agents import Agent, ItemHelpers, Runner, trace

spanish_agent = Agent(name="spanish_agent", instructions="You translate the user's message to Spanish")
translation_picker = Agent(name="translation_picker", instructions="You pick the best translation.")


async def main(task):
    with trace("Parallel translation"):
        results = await asyncio.gather(*(Runner.run(spanish_agent, task["text"]) for _ in range(3)))
        translations = "\n\n".join(ItemHelpers.text_message_outputs(result.new_items) for result in results)
        best = await Runner.run(translation_picker, f"Input: {task['text']}\n\nTranslations:\n{translations}")
    return best.final_output
