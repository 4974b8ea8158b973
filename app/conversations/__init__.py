"""Conversations on disk: a tree of messages each, searchable, written before and while a reply is made."""

from edgeinfer.app.conversations.records import Attachment, Conversation, Hit, Message, Role, State, Stats
from edgeinfer.app.conversations.store import Conversations

__all__ = ["Attachment", "Conversation", "Conversations", "Hit", "Message", "Role", "State", "Stats"]
