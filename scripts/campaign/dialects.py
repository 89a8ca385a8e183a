"""The dialects that agents speak, by the names under which calls are recorded."""

from collections.abc import Mapping

from campaign.chat_talk import ChatTalk
from campaign.completions_talk import CompletionsTalk
from campaign.messages_talk import MessagesTalk
from campaign.responses_talk import ResponsesTalk
from campaign.talk import Talk

DIALECTS: Mapping[str, type[Talk]] = {
    "chat": ChatTalk,
    "completions": CompletionsTalk,
    "responses": ResponsesTalk,
    "messages": MessagesTalk,
}
