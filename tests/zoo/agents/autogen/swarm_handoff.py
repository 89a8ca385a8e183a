r"""A Swarm of a travel agent that hands over to a refunder, which calls a tool and hands back.
---
author: 'await agent.run(task=task["question"])'
tasks:
  - question: I need to refund my flight, number 507811.
  - question: I need to refund my flight, number 914022.
model:
  - system: You are a travel agent
    when: refund my flight
    call: {name: transfer_to_flights_refunder}
  - system: specialise in refunding
    when: Flight (\d+) refunded
    call: {name: transfer_to_travel_agent}
  - system: specialise in refunding
    seen: number (\d+)
    call: {name: refund_flight, arguments: '{"flight_id": "\1"}'}
  - system: You are a travel agent
    seen: Flight (\d+) refunded
    say: Your flight \1 has been refunded. TERMINATE
calls: 4
result: [flight 507811 has been refunded, flight 914022 has been refunded]
agents: [travel_agent, flights_refunder]
"""

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import HandoffTermination, TextMentionTermination
from autogen_agentchat.teams import Swarm
from autogen_ext.models.openai import OpenAIChatCompletionClient


def refund_flight(flight_id: str) -> str:
    """Refund a flight"""
    return f"Flight {flight_id} refunded"


model_client = OpenAIChatCompletionClient(model="gpt-4o")

travel_agent = AssistantAgent(
    "travel_agent",
    model_client=model_client,
    handoffs=["flights_refunder", "user"],
    system_message="You are a travel agent. The flights_refunder is in charge of refunds. Use TERMINATE when done.",
)
flights_refunder = AssistantAgent(
    "flights_refunder",
    model_client=model_client,
    handoffs=["travel_agent", "user"],
    tools=[refund_flight],
    system_message="You specialise in refunding flights. Hand back to the travel agent when the refund is made.",
)

termination = HandoffTermination(target="user") | TextMentionTermination("TERMINATE")
agent = Swarm([travel_agent, flights_refunder], termination_condition=termination)
