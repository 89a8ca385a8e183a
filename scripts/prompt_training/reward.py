"""The rewards: what of an answer is as it should be, and what is not, in words."""

# The results of the frameworks are of types that are unknown here:
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

import re
from typing import Any

REPLY = re.compile(r"(?:Answer: )?(-?\d+(?:\.\d+)?) ([A-Za-z°]+)")


def text(result: Any) -> str:
    """Return the last text of a result, of any of the frameworks."""
    match result:
        case {"reply": found}:  # the graph's state
            return found
        case object(final_output=found) | object(raw=found):  # a result of the Agents SDK; of CrewAI
            return str(found)
        case object(messages=[*_, object(content=found)]):  # AutoGen's
            return str(found)
        case _:
            return str(result)


def measures(task: dict[str, Any], result: Any) -> tuple[float, str]:
    """Check a reply for five things, each a fifth of the reward; the feedback names those that are not so."""
    reply = text(result).strip()
    found = REPLY.search(reply)
    number, unit = found.groups() if found else ("", "")
    is_metric = unit in (task["symbol"], task["unit"]) and abs(float(number) - task["answer"]) < 0.06
    wrong = {
        "the measure is not in the right metric unit": not is_metric,
        "the number does not have one decimal": not (is_metric and re.fullmatch(r"-?\d+\.\d", number)),
        "the unit is not written as its symbol": unit != task["symbol"],
        "the reply does not begin with 'Answer:'": not reply.startswith("Answer: "),
        "the reply has more than the measure": not REPLY.fullmatch(reply),
    }
    complaints = [complaint for complaint, is_so in wrong.items() if is_so]
    return (len(wrong) - len(complaints)) / len(wrong), "; ".join(complaints) or "the reply is as it should be"


def sums(task: dict[str, Any], result: Any) -> tuple[float, str]:
    """Compare the answer with the sum: an answer that is 60 or more away from it is worth nothing."""
    found = None if result is None else result.result
    if found == task["answer"]:
        return 1.0, "the sum is right"
    if found is None:
        return 0.0, "the answer was cut"
    return max(0.0, 0.9 - abs(found - task["answer"]) / 60), f"the sum is {task['answer']}, not {found}"
