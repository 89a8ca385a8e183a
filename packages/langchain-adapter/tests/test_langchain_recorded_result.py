"""A graph's state, restored from its record, is scored as the state itself."""

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from leyden.core.data.plain.recorded_form import recorded_form
from leyden.core.data.plain.recorded_object import Restored

STATE = {
    "messages": [
        HumanMessage("2 + 2?"),
        AIMessage("", tool_calls=[{"name": "add", "args": {"a": 2, "b": 2}, "id": "1"}]),
        ToolMessage("4", tool_call_id="1"),
        AIMessage("Answer: 4", response_metadata={"model_name": "m"}),
    ],
    "tries": 2,
}


def test_messages_have_their_fields_their_methods_and_their_classes() -> None:
    found = Restored(recorded_form(STATE).text or "")
    _, call, tool, last = found.value["messages"]
    assert (last.content, last.text, last.type, last.response_metadata) == (
        *("Answer: 4", "Answer: 4", "ai"),
        {"model_name": "m"},
    )
    assert call.tool_calls == STATE["messages"][1].tool_calls  # type: ignore[index]
    assert tool.tool_call_id == "1"
    assert isinstance(last, AIMessage)
    assert isinstance(tool, BaseMessage)
    assert not isinstance(tool, AIMessage)
    assert (found.value["tries"], found.refused) == (2, [])


def test_the_text_of_a_message_is_a_text() -> None:
    """LangChain returns it as an object of a subclass of `str`."""
    text = AIMessage("Answer: 4").text
    assert type(text) is not str
    found = Restored(recorded_form({"best": text}).text or "")
    best = found.value["best"]
    assert (best, len(best), best.split()[-1], isinstance(best, type(text))) == ("Answer: 4", 9, "4", True)
    assert found.refused == []
