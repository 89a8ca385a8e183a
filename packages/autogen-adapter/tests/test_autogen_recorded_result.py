"""A `TaskResult`, restored from its record, is scored as the result itself."""

from autogen_agentchat.base import TaskResult
from autogen_agentchat.messages import BaseChatMessage, TextMessage

from leyden.core.data.plain.recorded_form import recorded_form
from leyden.core.data.plain.recorded_object import Restored


def test_a_task_result_has_its_messages() -> None:
    given = TaskResult(
        messages=[TextMessage(source="user", content="2 + 2?"), TextMessage(source="agent", content="Answer: 4")],
        stop_reason="done",
    )
    found = Restored(recorded_form(given).text or "")
    last = found.value.messages[-1]
    assert (found.value.stop_reason, last.content, last.source) == ("done", "Answer: 4", "agent")
    assert last.created_at == given.messages[-1].created_at
    assert last.to_text() == "Answer: 4"
    assert isinstance(found.value, TaskResult)
    assert isinstance(last, BaseChatMessage)
    assert found.refused == []
