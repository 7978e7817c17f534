"""The asyncio producer of transactions (``TransactionMQProducer``).

A message is sent as a half that no consumer sees. Then the local part of the transaction runs, and
its outcome commits the message or rolls it back. When the broker does not hear of the outcome,
since the producer died, say, it asks any producer of the group.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

from kerolox.client.aio.producers.open_transaction import Transaction
from kerolox.client.aio.producers.producer import Producer
from kerolox.client.aio.user_code import call_user, run_user
from kerolox.client.core.checking import checked
from kerolox.client.core.failures import note_failure, notify_failure
from kerolox.client.core.hooks import EndTransactionContext, run_hooks
from kerolox.client.core.namespaces import with_namespace, without_namespace
from kerolox.client.core.sending.queue_choice import queue_by_key
from kerolox.client.core.sending.send import OutgoingMessage, SendResult, SendStatus
from kerolox.client.core.sending.transaction import (
    Half,
    TransactionResult,
    TransactionState,
    end_request,
    half_message,
)
from kerolox.client.core.validate import checked_key
from kerolox.errors import KeroloxError, MessageRejectedError
from kerolox.message import Message, MessageExt, decode_properties
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.records import decode_record

if TYPE_CHECKING:
    from kerolox.client.aio.settings import ProducerSettings
    from kerolox.protocol.command import RemotingCommand
    from kerolox.remoting.client import ClientConnection

LocalTransaction = Callable[[Message], Awaitable[TransactionState] | TransactionState]
"""The local part of a transaction: an async function of the message that says how it ended."""

TransactionCheck = Callable[[MessageExt], Awaitable[TransactionState] | TransactionState]
"""Says how the transaction of a message ended, perhaps long ago: an async function."""

_log = logging.getLogger(__name__)


@checked()
class TransactionProducer(Producer):
    """Sends messages that become visible only if a local transaction succeeds.

    Brokers ask ``check`` about messages whose outcome they do not know, also those of other
    producers of the group, maybe before a restart. It has to look where the local transaction left
    its mark. A check or a local transaction that raises counts as UNKNOWN: the broker asks again,
    every minute, 15 times::

        async with TransactionProducer("orders", "127.0.0.1:9876", check=is_paid) as producer:
            await producer.send_in_transaction(Message("Paid", b"42", keys="42"), pay)
    """

    def __init__(
        self,
        group: str,
        name_server: str | Iterable[str] = "",
        *,
        check: TransactionCheck,
        settings: ProducerSettings | None = None,
    ) -> None:
        """Nothing is connected yet.

        Args:
            group: producer group; all its members must be able to answer ``check``.
            name_server: ``host:port``, several joined by ``;`` or in a list; empty:
                ``$NAMESRV_ADDR``.
            check: says how a transaction ended.
            settings: all else.

        Raises:
            ConfigError: the group or the name server is illegal.
        """
        super().__init__(group, name_server, settings=settings)
        self._check = check
        self._checks = 0
        self._check_slots = asyncio.Semaphore(self.settings.transaction_concurrency)

    async def send_in_transaction(
        self,
        message: Message,
        execute: LocalTransaction,
        *,
        dedup_key: str | None = None,
        timeout_ms: int | None = None,
    ) -> TransactionResult:
        """Send a half message, run the local transaction, and tell the broker how it ended.

        Args:
            message: what to send; it can't be delayed.
            execute: the local transaction. It runs only if the half was stored safely; else the
                message is rolled back. What it raises is raised here, after the broker has heard
                that the outcome is unknown.
            dedup_key: as of :meth:`send`. The commit counts: a topic that has a message with the
                key drops this one then.
            timeout_ms: time limit of the send, retries included; None: ``send_timeout_ms``.

        Returns:
            Where the half was stored, and the outcome.

        Raises:
            MessageRejectedError: the message is illegal; nothing was sent.
            BrokerError, RemotingError, TopicRouteNotFoundError: as :meth:`send`; the local
                transaction did not run.
        """
        outgoing, sent = await self._send_half(message, timeout_ms, dedup_key)
        state = TransactionState.ROLLBACK
        remark = f"the half message is stored, but {sent.status.value}"
        try:
            if sent.status is SendStatus.SEND_OK:
                state, remark = TransactionState.UNKNOWN, "executing"
                state, remark = _outcome(await run_user(execute, message)), ""
        except BaseException as error:
            remark = f"{type(error).__name__}: {error}"
            raise
        finally:
            await self._end(outgoing, sent, state, remark)
        return TransactionResult(sent, state)

    def transaction(
        self, message: Message, *, dedup_key: str | None = None, timeout_ms: int | None = None
    ) -> Transaction:
        """A block of code as the local transaction of a message.

        At its begin the half message is sent. At its end the message is committed. After an
        exception it is rolled back; the exception goes on. A block that is cancelled, or whose
        program ends, leaves the outcome open: the broker asks ``check``::

            async with producer.transaction(Message("Paid", b"42")) as transaction:
                await pay(42, transaction.transaction_id)

        ``commit()``, ``rollback()`` and ``leave_open()`` of the transaction say otherwise. Commit a
        database of your own as the last thing in the block. An exception behind that rolls the
        message back though the database has the change.

        Args:
            message: what to send; it can't be delayed.
            dedup_key: as of :meth:`send_in_transaction`.
            timeout_ms: time limit of the send, retries included; None: ``send_timeout_ms``.

        Raises:
            MessageRejectedError, BrokerError, RemotingError, TopicRouteNotFoundError: at the begin,
                as :meth:`send`; the block does not run.
            ClientError: at the begin: the half was not stored as safely as wanted, and is rolled
                back; the block does not run.
        """
        return Transaction(lambda: self._send_half(message, timeout_ms, dedup_key), self._end)

    async def _send_half(
        self, message: Message, timeout_ms: int | None, dedup_key: str | None
    ) -> tuple[OutgoingMessage, SendResult]:
        if message.delay_level:
            raise MessageRejectedError("a message of a transaction can't be delayed")
        cluster = self._sending_cluster(message)
        limit = self._time_limit(timeout_ms)
        key = checked_key(dedup_key)
        outgoing = half_message(await self._preparation.outgoing(message, key), self.group)
        topic = outgoing.topic
        plan = self._plans.get(topic) or await self._plans.make(cluster, topic, limit)
        queue = queue_by_key(plan.chooser.queues, key) if key else None
        sent = await self._delivery.deliver(
            cluster, plan, outgoing, queue, limit, is_keyed=bool(key)
        )
        return outgoing, sent

    async def _end(
        self, outgoing: OutgoingMessage, sent: SendResult, state: TransactionState, remark: str
    ) -> None:
        """Tell the broker that has the half; if that fails it asks later."""
        cluster = self._cluster
        address = None
        if cluster is not None:
            address = cluster.master_address(sent.queue.broker_name)
        if cluster is None or address is None:
            _log.warning("end of %s is not reported: no connection", sent.message_id)
            return
        if self._end_hooks:
            properties = decode_properties(outgoing.properties)
            self._run_end_hooks(address, outgoing.topic, properties, sent.message_id, state)
        request = end_request(Half.of(sent), self.group, state, from_check=False, remark=remark)
        try:
            await cluster.remoting.invoke_oneway(
                address, request, timeout_seconds=self.settings.send_timeout_ms / 1000
            )
        except KeroloxError as error:
            what = f"end of {sent.message_id} is not reported, the broker will ask"
            note_failure(self.settings.on_failure, _log, what, error)

    def _run_end_hooks(
        self,
        address: str,
        topic: str,
        properties: dict[str, str],
        message_id: str,
        state: TransactionState,
        *,
        is_from_check: bool = False,
    ) -> None:
        context = EndTransactionContext(
            self.group,
            self._namespace,
            address,
            topic,
            properties,
            message_id,
            state,
            is_from_check,
        )
        run_hooks(
            (hook.end_transaction for hook in self._end_hooks), context, self.settings.on_failure
        )

    # -- checks ---------------------------------------------------------------------------------
    async def _asked(
        self, command: RemotingCommand, connection: ClientConnection
    ) -> RemotingCommand | None:
        """A request of a broker."""
        if command.code != RequestCode.CHECK_TRANSACTION_STATE:
            return await super()._asked(command, connection)
        if self._checks >= self.settings.check_requests_max:
            _log.warning(
                "%d checks wait already; this one is dropped, it comes again", self._checks
            )
            return None
        self._checks += 1
        try:
            async with self._check_slots:
                await self._answer_check(command, connection.remote_address)
        finally:
            self._checks -= 1
        return None

    async def _answer_check(self, command: RemotingCommand, address: str) -> None:
        message, _ = decode_record(command.body)
        message.topic = without_namespace(self._namespace, message.topic)
        fields = command.ext_fields
        half = Half(
            int(fields["tranStateTableOffset"]),
            int(fields["commitLogOffset"]),
            message.unique_key or fields.get("msgId", ""),
        )
        state, remark = TransactionState.UNKNOWN, ""
        try:
            state = _outcome(await call_user(self._check, message))
        except Exception as error:
            what = f"check of message {half.message_id} failed"
            _log.exception("%s", what)
            notify_failure(self.settings.on_failure, what, error)
            remark = f"{type(error).__name__}: {error}"
        if self._end_hooks:
            topic = with_namespace(self._namespace, message.topic)
            self._run_end_hooks(
                address, topic, message.properties, half.message_id, state, is_from_check=True
            )
        request = end_request(half, self.group, state, from_check=True, remark=remark)
        if self._cluster is not None:
            await self._cluster.remoting.invoke_oneway(
                address, request, timeout_seconds=self.settings.send_timeout_ms / 1000
            )


def _outcome(state: object) -> TransactionState:
    """What a function of the user's returned; nothing and anything else is UNKNOWN."""
    return state if isinstance(state, TransactionState) else TransactionState.UNKNOWN
