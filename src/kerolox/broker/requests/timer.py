"""Messages for a moment: how far the timer is (GET_TIMER_CHECK_POINT, 60), how many messages wait
(GET_TIMER_METRICS, 61), and taking one back (RECALL_MESSAGE, 370)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kerolox.broker.context import Context
from kerolox.broker.errors import no_permission, system_error
from kerolox.broker.requests.send import code_of
from kerolox.broker.services.keyed_records import records_of_key
from kerolox.broker.services.writer import NewRecord
from kerolox.errors import BrokerError
from kerolox.kernel.append import COPY_MARK
from kerolox.message import PropertyKey, decode_properties
from kerolox.protocol.codes import Perm, RequestCode, ResponseCode
from kerolox.protocol.headers import EmptyHeader, RecallMessageHeader
from kerolox.protocol.names import TIMER_TOPIC
from kerolox.remoting.router import Reply, Request, Router

if TYPE_CHECKING:
    from kerolox.store.timer.recall import Recall

router: Router[Context] = Router()


@router.on(RequestCode.GET_TIMER_CHECK_POINT, EmptyHeader.decode)
async def timer_checkpoint(broker: Context, header: EmptyHeader, request: Request) -> Reply:
    """How far it is, for slaves."""
    if not broker.writing.timer.is_enabled:
        raise system_error("The checkpoint is null: timerWheelEnable is false")
    return Reply(body=broker.writing.timer.checkpoint().encode())


@router.on(RequestCode.GET_TIMER_METRICS, EmptyHeader.decode)
async def timer_metrics(broker: Context, header: EmptyHeader, request: Request) -> Reply:
    """How many messages wait, by topic."""
    from kerolox.store.timer.metrics import TimerMetrics

    service = broker.writing.timer
    if not service.is_enabled:
        raise system_error("The timer message store is null: timerWheelEnable is false")
    timer = service.timer
    metrics = TimerMetrics() if timer is None else timer.metrics(broker.now_ms())
    return Reply(body=metrics.encode())


@router.on(RequestCode.RECALL_MESSAGE, RecallMessageHeader.decode)
async def recall_message(broker: Context, header: RecallMessageHeader, request: Request) -> Reply:
    """Take a message back before its moment; the answer has its ``UNIQ_KEY`` as ``msgId``. The
    rules are those of ``RecallMessageProcessor``. Beyond them a handle of which no message waits is
    refused, where there is an index (``messageIndexEnable``)."""
    fields = {PropertyKey.MSG_REGION: broker.config.region_id}
    try:
        unique_key = await _recalled(broker, header, request)
    except BrokerError as error:
        return Reply(error.code, error.remark, fields)
    return Reply(fields={"msgId": unique_key, **fields})


async def _recalled(broker: Context, header: RecallMessageHeader, request: Request) -> str:
    from kerolox.store.timer.puts import Refused
    from kerolox.store.timer.recall import RECALL_BODY, decide_recall

    config = broker.config
    _check_open(broker)
    if header.topic not in broker.tables.topics:
        raise BrokerError(
            f"recall failed, the topic[{header.topic}] not exist", code=ResponseCode.TOPIC_NOT_EXIST
        )
    found = decide_recall(
        header.recall_handle,
        config.timer_settings,
        topic=header.topic,
        broker_name=config.broker_name,
        group=header.producer_group,
        now_ms=broker.now_ms(),
        has_index=config.message_index_enable,
    )
    if isinstance(found, Refused):
        raise BrokerError(found.text, code=found.code)
    if config.message_index_enable and not _waits(broker, header.topic, found):
        raise BrokerError(
            "recall failed, no message of this handle waits here",
            code=ResponseCode.ILLEGAL_OPERATION,
        )
    host = broker.identity.store_host
    put = await broker.writing.writer.put(
        NewRecord(
            topic=header.topic,
            queue_id=0,
            body=RECALL_BODY,
            properties=found.properties,
            born_timestamp=broker.now_ms(),
            born_host=request.born_host,
            store_host=host,
        )
    )
    if not put.is_stored:
        try:
            code_of(broker, put)
        except BrokerError as error:
            raise system_error(f"recall failed, execute error: {error.remark}") from None
    return found.properties[PropertyKey.UNIQUE_KEY]


def _check_open(broker: Context) -> None:
    """BrokerError unless messages may be taken back now."""
    config = broker.config
    if not config.recall_message_enable:
        raise no_permission("recall failed, operation is forbidden")
    closed = "recall failed, broker service not available"
    if broker.role.current.is_slave:
        raise BrokerError(closed, code=ResponseCode.SLAVE_NOT_AVAILABLE)
    is_writable = (
        config.broker_permission & Perm.WRITE or config.allow_recall_when_broker_not_writeable
    )
    if broker.now_ms() < config.start_accept_send_request_time_stamp or not is_writable:
        raise BrokerError(closed, code=ResponseCode.SERVICE_NOT_AVAILABLE)


def _waits(broker: Context, topic: str, command: Recall) -> bool:
    """Whether there is a message that a command would delete."""
    out_text, unique_key = str(command.out_ms), command.properties[PropertyKey.UNIQUE_KEY]
    waiting = records_of_key(broker.store, TIMER_TOPIC, unique_key)
    copies = [*waiting, *records_of_key(broker.store, topic, unique_key)]
    done = {each.prepared_transaction_offset - COPY_MARK for each in copies}
    return any(
        _is_of(decode_properties(str(each.properties, errors="replace")), topic, out_text)
        for each in waiting
        if each.physical_offset not in done
    )


def _is_of(properties: dict[str, str], topic: str, out_text: str) -> bool:
    return (
        properties.get(PropertyKey.REAL_TOPIC) == topic
        and properties.get(PropertyKey.TIMER_OUT) == out_text
        and PropertyKey.TIMER_DELETES not in properties
    )
