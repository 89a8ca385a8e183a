"""A `CrewOutput`, restored from its record, is scored as the output itself."""

from crewai.crews.crew_output import CrewOutput
from crewai.tasks.task_output import TaskOutput

from leyden.core.data.plain.recorded_form import recorded_form
from leyden.core.data.plain.recorded_object import Restored


def test_a_crew_output_has_its_text_and_those_of_its_tasks() -> None:
    task = TaskOutput(description="add", agent="adder", raw="4", messages=[{"role": "assistant", "content": "4"}])
    given = CrewOutput(raw="Answer: 4", tasks_output=[task])
    found = Restored(recorded_form(given).text or "")
    assert (found.value.raw, str(found.value)) == ("Answer: 4", "Answer: 4")
    assert found.value.tasks_output[0].messages == [{"role": "assistant", "content": "4"}]
    assert isinstance(found.value, CrewOutput)
    assert found.refused == []
