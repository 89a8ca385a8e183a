# pyright: basic
"""A chain that answers sums: a prompt, a model and a parser."""

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

prompt = ChatPromptTemplate.from_messages(
    [
        ("system", "You are a calculator. Reply with the number only."),
        ("human", "{question}"),
    ]
)

model = ChatOpenAI(
    model="gpt-4.1-mini",
    base_url="https://api.openai.com/v1",
    api_key=SecretStr("sk-your-key-here"),
    temperature=0,
    max_completion_tokens=16,
)

agent = prompt | model | StrOutputParser()
