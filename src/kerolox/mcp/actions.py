"""Tools that change something: the console's actions, with their roles, checks and audit lines.

The fields of each are those of the console's form.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated

import msgspec

from kerolox.console.performing import audit_result
from kerolox.console.routes import ROUTES, Route
from kerolox.errors import ClientError
from kerolox.mcp.tools import BODY_CHARACTERS_MAX, Agent, Answer, Arguments, Tool, about
from kerolox.remoting.audit import is_secret, without_secrets

__all__ = ["LEFT_OUT", "TOOLS"]

LEFT_OUT = {
    "/acl/put": "a secret key would be in an agent's conversation",
    "/acl/delete": "accounts are no business of agents",
    "/acl/white-list": "who may do everything is no business of agents",
}
"""Actions of the console that no tool does, and why."""

_YES = "1"
_Body = Annotated[str, msgspec.Meta(max_length=BODY_CHARACTERS_MAX, description="UTF-8 text")]


class Form(Arguments):
    """The fields of an action's form."""

    def form(self) -> dict[str, list[str]]:
        """As a browser would send them. ClientError: they don't fit."""
        made: dict[str, list[str]] = {}
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, bool):
                value = _YES if value else ""
            made[name] = value if isinstance(value, list) else [str(value)]
        return made


Again = Annotated[str, about("The same name once more, to confirm")]
Perm = Annotated[int, msgspec.Meta(description="6 read and write, 4 read, 2 write")]


class SendMessage(Form):
    """A message."""

    topic: Annotated[str, about("Its topic")]
    body: _Body
    tags: Annotated[str, about("Its tag")] = ""
    keys: Annotated[str, about("Its keys, with blanks in between")] = ""
    properties: dict[str, str] = msgspec.field(default_factory=dict)

    def form(self) -> dict[str, list[str]]:
        """Properties are lines of a text."""
        if any("\n" in each for pair in self.properties.items() for each in pair):
            raise ClientError("a property has a line break in it")
        lines = "\n".join(f"{name}={value}" for name, value in self.properties.items())
        return {**super().form(), "properties": [lines]}


class PutTopic(Form):
    """A topic."""

    topic: Annotated[str, about("Its name")]
    queues: Annotated[int, msgspec.Meta(description="On each broker")]
    perm: Perm = 6


class CreateTopic(PutTopic):
    """A new topic."""

    cluster: Annotated[str, about("Where; empty: the only cluster")] = ""


class DeleteTopic(Form):
    """A topic."""

    topic: Annotated[str, about("Its name")]
    again: Again


class OfGroup(Form):
    """A group."""

    name: Annotated[str, about("Of the group")]


class ResetOffsets(OfGroup):
    """Where a group goes on."""

    topic: Annotated[str, about("Its name, or * for all topics of the group")]
    to: Annotated[str, about("beginning, end, a time, a duration as 2h, an offset; plan it first")]
    queue: Annotated[
        list[str], msgspec.Meta(max_length=1_024, description="broker/id; []: all")
    ] = msgspec.field(default_factory=list)


class Release(OfGroup):
    """What members hold."""

    at: Annotated[int, msgspec.Meta(description="Popped before this, in ms since 1970")]
    topic: Annotated[str, about("Of this topic alone")] = ""
    owner: Annotated[str, about("Held by this client alone")] = ""
    minutes: Annotated[int, msgspec.Meta(ge=0, description="Out for so long by then")] = 0


class UpdateGroup(OfGroup):
    """Settings of a group."""

    retries: Annotated[int, msgspec.Meta(ge=0, description="Deliveries before it is a dead letter")]
    orderly: bool | None = None

    def form(self) -> dict[str, list[str]]:
        """None leaves the order as it is, which is no box of the form."""
        orderly, was = {None: ("", ""), True: (_YES, ""), False: ("", _YES)}[self.orderly]
        return {**super().form(), "orderly": [orderly], "was_orderly": [was]}


class CloneOffsets(OfGroup):
    """A group whose offsets another gets."""

    target: Annotated[str, about("The group that gets them")]
    topic: Annotated[str, about("Of this topic alone")] = ""
    new: Annotated[bool, msgspec.Meta(description="The target may be new")] = False


class DeleteGroup(OfGroup):
    """A group."""

    again: Again
    offsets: Annotated[bool, msgspec.Meta(description="Its offsets, too")] = False


class ResendMessage(Form):
    """A message, by its id, or by queue and offset."""

    topic: Annotated[str, about("Where it is")]
    id: Annotated[str, about("The producer's id or the broker's")] = ""
    queue: Annotated[str, about("broker/id")] = ""
    offset: Annotated[str, about("Its offset in the queue")] = ""
    to: Annotated[str, about("Another topic")] = ""


class OfLetters(Form):
    """Whose dead letters."""

    group: Annotated[str, about("Of the dead letters")]


class ResendLetters(OfLetters):
    """Chosen dead letters."""

    place: Annotated[
        list[str], msgspec.Meta(min_length=1, max_length=200, description="broker/id:offset")
    ]
    again: Annotated[bool, msgspec.Meta(description="Those that are done, too")] = False


class PurgeLetters(OfLetters):
    """All that wait."""

    again: Again


class Recall(Form):
    """A message that waits for its moment."""

    handle: Annotated[str, about("As the tool delayed has it")]


class Commit(Form):
    """An open transaction."""

    broker: Annotated[str, about("The broker's name")]
    id: Annotated[str, about("The message's id, as the tool transactions has it")]


class RollBack(Commit):
    """The same."""

    again: Annotated[str, about("The id once more, to confirm")]


class OfBroker(Form):
    """A broker."""

    address: Annotated[str, about("host:port")]


class SetSetting(OfBroker):
    """A setting of a broker."""

    name: Annotated[str, about("Of the setting")]
    value: Annotated[str, about("What it becomes")]

    def form(self) -> dict[str, list[str]]:
        """A secret is set elsewhere: here it would be in an agent's conversation."""
        if is_secret(self.name):
            raise ClientError(f"{self.name} holds a secret; set it with kerolox broker set")
        return super().form()


class Retire(OfBroker):
    """A broker."""

    force: Annotated[bool, msgspec.Meta(description="Also where topics are nowhere else")] = False


class Promote(OfBroker):
    """A slave."""

    accept_loss: Annotated[bool, msgspec.Meta(description="Messages may be lost")] = False

    def form(self) -> dict[str, list[str]]:
        """As the box of the form says it."""
        return {"address": [self.address], "loss": ["accepted" if self.accept_loss else ""]}


def _doing(route: Route) -> Callable[[Agent, Form], Awaitable[Answer]]:
    assert route.action is not None
    do = route.action

    async def answer(agent: Agent, a: Form) -> Answer:
        agent.form = a.form()
        result = await do(agent)
        audit_result(agent, route.path, result)
        about_it = {**result.target, "old": result.old, "new": result.new}
        shown = {name: without_secrets(name, value) for name, value in about_it.items()}
        return Answer({"done": result.text, "notes": agent.notes, **shown})

    return answer


_ROUTES = {route.path: route for route in ROUTES if route.is_action}


def _tool(name: str, path: str, arguments: type[Form], description: str) -> Tool:
    route = _ROUTES[path]
    return Tool(
        name,
        description,
        arguments,
        _doing(route),
        role=route.role,
        path=path,
        seconds_max=route.seconds_max,
    )


TOOLS = (
    _tool("send_message", "/topic/send", SendMessage, "Send a message to a topic."),
    _tool("create_topic", "/topic/create", CreateTopic, "Make a topic."),
    _tool("update_topic", "/topic/update", PutTopic, "Change queues and permission of a topic."),
    _tool("delete_topic", "/topic/delete", DeleteTopic, "Delete a topic with its messages."),
    _tool("reset_offsets", "/group/reset", ResetOffsets, "Move a group; plan_reset shows it."),
    _tool("release_popped", "/group/release", Release, "Let popped messages come again."),
    _tool("update_group", "/group/update", UpdateGroup, "Make a group, or change its settings."),
    _tool("clone_offsets", "/group/clone", CloneOffsets, "Give a group another one's offsets."),
    _tool("pause_group", "/group/pause", OfGroup, "Deliver nothing more to a group."),
    _tool("resume_group", "/group/resume", OfGroup, "Deliver to a group again."),
    _tool("delete_group", "/group/delete", DeleteGroup, "Delete a group."),
    _tool("resend_message", "/message/resend", ResendMessage, "Send a copy of a message."),
    _tool("resend_dead_letters", "/dead-letter/resend", ResendLetters, "Give chosen ones again."),
    _tool(
        "resend_all_dead_letters",
        "/dead-letter/resend-all",
        OfLetters,
        "Give all dead letters that wait to their group again; call it until none waits.",
    ),
    _tool("purge_dead_letters", "/dead-letter/purge", PurgeLetters, "Mark all as done."),
    _tool("recall_message", "/delayed/recall", Recall, "Take back what waits for its moment."),
    _tool("commit_transaction", "/transaction/commit", Commit, "Deliver an open half."),
    _tool("roll_back_transaction", "/transaction/rollback", RollBack, "Drop an open half."),
    _tool("set_setting", "/broker/set", SetSetting, "Change a setting of a broker."),
    _tool("retire_broker", "/broker/retire", Retire, "Have producers send to a broker no more."),
    _tool("return_broker", "/broker/return", OfBroker, "Have producers send to it again."),
    _tool("promote_broker", "/broker/promote", Promote, "Make a slave the master."),
)
