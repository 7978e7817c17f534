"""What calls answer: RocketMQ's codes, and which of them stands for a code of remoting
(``ResponseBuilder``)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kerolox.errors import AccessDeniedError, BrokerError
from kerolox.protocol.codes import ResponseCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.grpc import messages as pb

if TYPE_CHECKING:
    from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper

OK_TEXT = "OK"

STATUS_TEXT_CHARACTERS_MAX = 4_096
"""Of a status; longer texts are cut."""

_OF_REMOTING: dict[int, int] = {
    ResponseCode.SUCCESS: pb.OK,
    ResponseCode.SYSTEM_BUSY: pb.TOO_MANY_REQUESTS,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: pb.NOT_IMPLEMENTED,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: pb.CONSUMER_GROUP_NOT_FOUND,
    ResponseCode.TOPIC_NOT_EXIST: pb.TOPIC_NOT_FOUND,
    ResponseCode.FLUSH_DISK_TIMEOUT: pb.MASTER_PERSISTENCE_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: pb.SLAVE_PERSISTENCE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: pb.HA_NOT_AVAILABLE,
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: pb.ILLEGAL_FILTER_EXPRESSION,
}
"""Others are INTERNAL_SERVER_ERROR, which clients try again."""


class AnswerError(Exception):
    """A call, or an entry of one, is answered with a code other than OK."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code

    @property
    def status(self) -> pb.Status:
        """As the answer holds it."""
        return status_of(self.code, str(self))


def status_of(code: int, text: str) -> pb.Status:
    """A status."""
    return pb.Status(code=code, message=text[:STATUS_TEXT_CHARACTERS_MAX])


def ok() -> pb.Status:
    """The status of success."""
    return pb.Status(code=pb.OK, message=OK_TEXT)


def status_of_all(statuses: Iterable[pb.Status]) -> pb.Status:
    """The status of a call whose entries have these."""
    found = list(statuses)
    if len({each.code for each in found}) > 1:
        return status_of(pb.MULTIPLE_RESULTS, "mixed results")
    return found[0] if found else ok()


def enum_text(kind: EnumTypeWrapper, number: int) -> str:
    """The name of a value that a client sent, or its number: it may be none that is known."""
    return str(kind.Name(number)) if number in kind.values() else str(number)


def code_of(remoting_code: int) -> int:
    """The code that stands for one of remoting."""
    return _OF_REMOTING.get(remoting_code, pb.INTERNAL_SERVER_ERROR)


def error_of(response: RemotingCommand) -> AnswerError:
    """What the answer of a request says that did not succeed."""
    return AnswerError(code_of(response.code), response.remark or f"code {response.code}")


def error_of_refusal(error: BrokerError) -> AnswerError:
    """What a request that was refused says."""
    if isinstance(error, AccessDeniedError):
        return AnswerError(pb.UNAUTHORIZED, error.remark)
    return AnswerError(code_of(error.code), error.remark)
