"""The dialects that agents use, by the names under which calls are recorded."""

from collections.abc import Mapping

from campaign.dialects.chat import Chat
from campaign.dialects.completions import Completions
from campaign.dialects.conversation import Conversation
from campaign.dialects.messages import Messages
from campaign.dialects.responses import Responses

DIALECTS: Mapping[str, type[Conversation]] = {
    "chat": Chat,
    "completions": Completions,
    "responses": Responses,
    "messages": Messages,
}
