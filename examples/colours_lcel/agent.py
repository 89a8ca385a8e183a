# pyright: basic
"""A chain that names the colour of a picture: a prompt with an image, a model and a parser."""

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

prompt = ChatPromptTemplate.from_messages(
    [
        ("system", "Name the colour of the picture in one word."),
        (
            "human",
            [
                {"type": "text", "text": "Which colour is this?"},
                {"type": "image_url", "image_url": {"url": "{picture}"}},
            ],
        ),
    ]
)

model = ChatOpenAI(
    model="gpt-4.1-mini",
    base_url="https://api.openai.com/v1",
    api_key=SecretStr("sk-your-key-here"),
    temperature=0,
    max_completion_tokens=4,
)

agent = prompt | model | StrOutputParser()
