"""The table of handlers."""

from __future__ import annotations

from typing import Any

import pytest

from kerolox.broker.requests import ROUTER
from kerolox.errors import BrokerError
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.headers import EmptyHeader, TopicHeader
from kerolox.remoting.router import Reply, Router


async def test_a_handler_gets_its_header_and_its_reply_is_the_answer():
    router: Router[Any] = Router()

    @router.on(RequestCode.GET_TOPIC_STATS_INFO, TopicHeader.decode)
    async def handler(broker, header, request):
        return Reply(0, "fine", {"topic": header.topic, "flag": True}, b"body")

    command = RemotingCommand.request(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"})
    command.opaque = 9
    answer = await router.dispatch(None, command, None)
    assert (answer.code, answer.remark, answer.opaque) == (0, "fine", 9)
    assert answer.ext_fields == {"topic": "T", "flag": "true"}
    assert answer.body == b"body"
    command.ext_fields = {}
    answer = await router.dispatch(None, command, None)
    assert (answer.code, answer.remark) == (1, "the custom field <topic> is null")


async def test_an_error_of_a_handler_is_the_answer_of_its_code():
    router: Router[Any] = Router()

    @router.on(RequestCode.HEART_BEAT, EmptyHeader.decode)
    async def handler(broker, header, request):
        raise BrokerError("not now", code=2)

    answer = await router.dispatch(None, RemotingCommand(RequestCode.HEART_BEAT), None)
    assert (answer.code, answer.remark) == (2, "not now")


def test_a_code_has_one_handler():
    one, two = Router(), Router()
    for router in (one, two):
        router.on(RequestCode.HEART_BEAT, EmptyHeader.decode)(None)
    with pytest.raises(ValueError, match="34 has a handler already"):
        one.include(two)


def test_the_broker_answers_the_codes_that_clients_and_mqadmin_need():
    needed = {10, 11, 12, 14, 15, 17, 21, 25, 26, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 41}
    needed |= {18, 50, 51, 52, 53, 54}
    needed |= {42, 43, 45, 46, 200, 201, 202, 203, 204, 207, 208, 215, 222, 223, 300, 303, 305}
    needed |= {306, 307, 308, 309, 310, 314, 315, 316, 317, 320, 321, 323, 324, 325, 328, 329}
    needed |= {343, 345, 351, 352, 361, 400, 401, 402, 907}  # of 5.x
    needed |= {*range(200_050, 200_057), 200_151}  # pops
    needed |= {60, 61, 370}  # the timer
    needed |= {50, 51, 52, 53, 54}  # accounts
    needed |= {1007, 1008}  # the controller
    needed |= {31037, 31038, 31039, 31040, 31041}  # our own
    assert ROUTER.codes == needed
