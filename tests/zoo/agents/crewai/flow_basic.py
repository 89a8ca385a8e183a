r"""A flow with a typed state: a start, and a listener that reads its output; each calls an LLM.
---
run: CityFlow
author: 'CityFlow().kickoff(inputs={"country": task["country"]})'
tasks:
  - country: Portugal
  - country: Norway
model:
  - when: city of (\w+)
    say: Port of \1
  - when: fact about Port of (\w+)
    say: The port of \1 is old.
calls: 2
result: [The port of Portugal is old., The port of Norway is old.]
"""

from crewai import LLM
from crewai.flow.flow import Flow, listen, start
from pydantic import BaseModel


class CityState(BaseModel):
    country: str = ""
    city: str = ""
    fact: str = ""


class CityFlow(Flow[CityState]):
    model = LLM(model="gpt-4o-mini")

    @start()
    def choose_city(self):
        self.state.city = self.model.call(f"Return the name of a city of {self.state.country}.")
        return self.state.city

    @listen(choose_city)
    def tell_fact(self, city):
        self.state.fact = self.model.call(f"Tell me a fact about {city}")
        return self.state.fact


def plot():
    CityFlow().plot("city_flow")
