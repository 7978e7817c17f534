"""What only a master answers, while roles change and for a while after it.

Clients of RocketMQ ask for routes every 30 s, and send to the old master until then. Refusals would
use up their few retries within milliseconds. So a master that is paused holds such requests for a
moment, and one that became a slave passes them on to its master as they are, with the client's own
signature. After :data:`PASS_SECONDS` it refuses them as every slave does.
"""

from __future__ import annotations

import asyncio

from kerolox.broker.config import BrokerSettings
from kerolox.broker.outbound import outbound_client
from kerolox.errors import BrokerError, KeroloxError
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import RemotingCommand

HOLD_SECONDS = 2.0
"""Clients wait 3 s for the answer to a send (sendMsgTimeout)."""

HELD_MAX = 4_096
"""Requests that are held at the same time; further ones are refused."""

PASS_SECONDS = 120.0
"""How long a former master passes requests on: clients have heard of the other one long before."""

PASSED_SECONDS_MAX = 3.0
"""How long the master may take to answer one."""

_WRITES = frozenset(
    (
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.CONSUMER_SEND_MSG_BACK,
        RequestCode.END_TRANSACTION,
        RequestCode.END_HALF_MESSAGES,
        RequestCode.UPDATE_CONSUMER_OFFSET,
        RequestCode.LOCK_BATCH_MQ,
        RequestCode.UNLOCK_BATCH_MQ,
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
    )
)
"""What changes something that a slave takes from its master."""

_READS = frozenset(
    (
        RequestCode.QUERY_CONSUMER_OFFSET,
        RequestCode.GET_MAX_OFFSET,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
    )
)
"""What a slave may know later than its master. It is held by nobody."""


class RequestForwarder:
    """Holds and passes on requests of one broker.

    Attributes:
        is_on: some requests are held or passed on now.
    """

    def __init__(self, settings: BrokerSettings) -> None:
        """Nothing is held or passed on."""
        self._client = outbound_client(settings, signs=False)
        self._ended = asyncio.Event()
        self._is_holding = False
        self._held = 0
        self._master = ""
        self._until = 0.0
        self.is_on = False

    def hold(self) -> None:
        """Hold writes until :meth:`release` or :meth:`pass_to`."""
        if not self._is_holding:
            self._ended = asyncio.Event()
        self._is_holding = self.is_on = True

    def release(self) -> None:
        """This broker answers them itself, those that were held too."""
        self._master = ""
        self._is_holding = self.is_on = False
        self._ended.set()

    def pass_to(self, master: str) -> None:
        """Have a master answer them for a while, those that were held too."""
        self._master = master
        self._until = asyncio.get_running_loop().time() + PASS_SECONDS
        self._is_holding = False
        self.is_on = bool(master)
        self._ended.set()

    @property
    def is_passing(self) -> bool:
        """This broker was the master just now, and some clients take it for the master still."""
        if self._master and asyncio.get_running_loop().time() >= self._until:
            self.release()
        return bool(self._master)

    async def close(self) -> None:
        """Close the connection."""
        self.release()
        await self._client.close()

    async def take(self, command: RemotingCommand) -> RemotingCommand | None:
        """The answer to a request that is passed on; None: this broker answers it, or nobody does
        where it is one-way. BrokerError: it waited for too long, or the master does not answer;
        code SERVICE_NOT_AVAILABLE, with which clients try again.
        """
        if command.code in _WRITES and self._is_holding:
            await self._wait()
        if self.is_passing and (command.code in _WRITES or command.code in _READS):
            return await self._pass(command)
        return None

    async def _wait(self) -> None:
        if self._held >= HELD_MAX:
            raise _later(f"{HELD_MAX} requests wait for it already")
        self._held += 1
        try:
            # A handler is no task before its first wait, and only a task may have a timeout.
            await asyncio.sleep(0)
            async with asyncio.timeout(HOLD_SECONDS):
                await self._ended.wait()
        except TimeoutError:
            raise _later("that takes long") from None
        finally:
            self._held -= 1

    async def _pass(self, command: RemotingCommand) -> RemotingCommand:
        asked = RemotingCommand(
            command.code,
            dict(command.ext_fields),
            bytes(command.body),
            remark=command.remark,
            language=command.language,
            version=command.version,
            serialize_type=command.serialize_type,
        )
        try:
            await asyncio.sleep(0)
            if command.is_oneway:
                # What nobody waits for means something else to some: a consumer stores its offset
                # so, and an operator sets one and waits.
                await self._client.invoke_oneway(self._master, asked)
                return command.response(ResponseCode.SUCCESS)
            answer = await self._client.invoke(
                self._master, asked, timeout_seconds=PASSED_SECONDS_MAX
            )
        except KeroloxError as error:
            raise _later(f"the new master does not answer: {error}") from None
        return command.response(answer.code, answer.remark, answer.ext_fields, body=answer.body)


def _later(why: str) -> BrokerError:
    return BrokerError(
        f"service not available now: master and slave change their roles, and {why}; try again",
        code=ResponseCode.SERVICE_NOT_AVAILABLE,
    )
