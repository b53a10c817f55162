"""Channels and groups: their names and use, the messages of one channel, the members of one group."""

from typing import Any

from perdure.dashboard.pages import Dashboard, Page, Visit
from perdure.dashboard.values import parse
from perdure.engine.history.ids import CHILD_ENDS
from perdure.model.administration import ChannelUse
from perdure.model.limits import NAME_MAX
from perdure.storage.surveys import USE_MAX, Surveys

PAGE = 25
MESSAGES = 50
MEMBERS = 200


async def channels(dashboard: Dashboard, visit: Visit) -> Page:
    """Return the channels and groups, and what is in those that the URL names."""
    administration = dashboard.administration
    document: dict[str, Any] = {
        "channel": await _channel(dashboard, visit.value("channel").strip()),
        "group": await _group(dashboard, visit.value("group").strip()),
        "counted_to": USE_MAX,
        **(await _lists(administration.surveys, visit) if administration is not None else NO_LISTS),
    }
    return Page("channels.html", "Channels and groups", document)


NO_LISTS: dict[str, Any] = {"channels": [], "groups": [], "next_channel": None, "next_group": None}


async def _lists(surveys: Surveys, visit: Visit) -> dict[str, Any]:
    after = [visit.value(each)[:NAME_MAX] for each in ("channels_after", "groups_after")]
    channels = await surveys.list_channels(PAGE + 1, after=after[0])
    groups = await surveys.list_groups(PAGE + 1, after=after[1])
    return {
        "channels": [_use(each) for each in channels[:PAGE]],
        "groups": groups[:PAGE],
        "next_channel": channels[PAGE - 1].channel if len(channels) > PAGE else None,
        "next_group": groups[PAGE - 1].group_name if len(groups) > PAGE else None,
    }


def _use(found: ChannelUse) -> dict[str, Any]:
    """Return a channel of the list; `receiver` is the only run that gets its messages, if there is one."""
    receiver = found.channel.partition(":")[2] or None  # a colon in a name that a user chose is stored escaped
    return {
        "channel": found.channel,
        "messages": found.messages,
        "subscribers": found.subscribers,
        "receiver": receiver,
        "is_child_end": found.channel.startswith(CHILD_ENDS),
    }


async def _channel(dashboard: Dashboard, name: str) -> dict[str, Any] | None:
    if not name or len(name) > NAME_MAX:
        return None
    storage = dashboard.storage
    mode = await storage.get_channel_mode(name)
    administration = dashboard.administration
    waiting = await administration.surveys.some_waiting(name, MEMBERS) if administration is not None else []
    messages = await storage.get_pending_channel_messages(name, limit=MESSAGES)
    return {
        "name": name,
        "mode": None if mode is None else mode.value,
        "waiting": [{"id": id, "until": until} for id, until in sorted(dict(waiting).items())],
        "waiting_max": MEMBERS,
        "messages": [
            {
                "id": each.id,
                "at": each.published_at,
                "data": dashboard.redact(
                    parse(each.data) if each.data_type != "binary" else each.data_binary, "message"
                ),
            }
            for each in messages
        ],
        "messages_max": MESSAGES,
    }


async def _group(dashboard: Dashboard, name: str) -> dict[str, Any] | None:
    if not name or len(name) > NAME_MAX:
        return None
    return {"name": name, "members": await dashboard.storage.get_group_members(name, limit=MEMBERS), "most": MEMBERS}
