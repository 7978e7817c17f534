"""Every error that Kerolox raises on purpose, in one tree.

::

    KeroloxError
    ├── ConfigError              a setting, option or argument is wrong; nothing was started
    ├── StoreError               the files of a store can't be used; says which and why
    ├── ClientError              our own side can't do what was asked (no route, not started ...)
    │   ├── TopicExistsError         a topic that was to be made is there already
    │   ├── TopicRouteNotFoundError  no name server knows a route for the topic
    │   ├── MessageRejectedError     the message itself is illegal, found before it was sent
    │   ├── SerializationError       a body holds no value of its type, or a value has no body
    │   ├── ReplyError               who got a request replied with an error
    │   └── ClientClosedError        used before start or after close
    ├── RemotingError            the connection or the peer's bytes
    │   ├── ConnectError             no connection within the time limit
    │   ├── ConnectionLostError      the connection closed with requests open
    │   ├── RequestTimeoutError      no response within the time limit
    │   ├── LocalProtocolError       we tried to send something that no frame can hold
    │   └── RemoteProtocolError      the peer sent bytes that are no frame
    └── BrokerError              a peer answered, and the answer is an error code

``BrokerError`` has one class per response code; ``BrokerError.from_response`` picks it.
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "AccessDeniedError",
    "AccountDeleteError",
    "AccountUpdateError",
    "BrokerBusyError",
    "BrokerError",
    "BrokerSystemError",
    "ClientClosedError",
    "ClientError",
    "ConfigError",
    "ConnectError",
    "ConnectionLostError",
    "ConsumeTimeoutError",
    "ConsumerNotOnlineError",
    "GroupNotFoundError",
    "KeroloxError",
    "LocalProtocolError",
    "MessageIllegalError",
    "MessageRejectedError",
    "NoPermissionError",
    "NotFoundError",
    "PartlySentError",
    "RemoteProtocolError",
    "RemotingError",
    "ReplyError",
    "RequestCodeNotSupportedError",
    "RequestTimeoutError",
    "SerializationError",
    "ServiceNotAvailableError",
    "StoreError",
    "SubmitsFullError",
    "SubscriptionNotFoundError",
    "SubscriptionNotLatestError",
    "SubscriptionParseError",
    "TopicExistsError",
    "TopicNotFoundError",
    "TopicRouteNotFoundError",
    "WhiteListUpdateError",
]


ACL_EXCEPTION = "org.apache.rocketmq.acl.common.AclException"
"""Begins the remark when access control refuses a request; its code says no more than failure."""


class KeroloxError(Exception):
    """Root of all errors raised on purpose."""


class ConfigError(KeroloxError):
    """A setting, option or argument is wrong; the text names it and the nearest valid one."""


class StoreError(KeroloxError):
    """The files of a store can't be used."""


class ClientError(KeroloxError):
    """Our own side can't do what was asked."""


class TopicRouteNotFoundError(ClientError):
    """No name server knows a route for the topic (client code 10005)."""


class TopicExistsError(ClientError):
    """A topic that was to be made is there already; nothing was changed."""


class MessageRejectedError(ClientError):
    """The message is illegal; it was not sent (code 13 would have been the answer)."""


class PartlySentError(ClientError):
    """Of several batches some are stored, and one failed; its error is the ``__cause__``.

    ``sent`` is how many messages are stored, counted from the first. Those of the batch behind them
    may be, where the cause leaves that open; all others were not sent.
    """

    def __init__(self, sent: int, count: int, cause: KeroloxError) -> None:
        self.sent = sent
        super().__init__(f"{sent} of {count} messages are stored; the batch behind failed: {cause}")


class SubmitsFullError(ClientError, BufferError):
    """So many submitted sends have no outcome yet that no further one is taken."""


class SerializationError(ClientError):
    """A body holds no value of the type that was asked for, or a value is none that can be
    written; the library's error is the ``__cause__``."""


class ReplyError(ClientError):
    """Who got a request replied with an error (``create_reply(..., error=...)``)."""

    def __init__(self, text: str, reply: object = None) -> None:
        """``reply``: the whole reply, a ``MessageExt``; its body may say more."""
        super().__init__(text)
        self.reply = reply


class ClientClosedError(ClientError):
    """Used before it was started, or after it was closed."""


class RemotingError(KeroloxError):
    """The connection, or the bytes on it."""


class ConnectError(RemotingError):
    """No connection within the time limit."""


class ConnectionLostError(RemotingError):
    """The connection closed while a request was open; whether it was done is unknown."""


class RequestTimeoutError(RemotingError):
    """No response within the time limit; whether the request was done is unknown."""


class LocalProtocolError(RemotingError):
    """We tried to send something that no frame can hold."""


class RemoteProtocolError(RemotingError):
    """The peer sent bytes that are no frame; the connection can't be used any more."""


class BrokerError(KeroloxError):
    """A broker or name server answered with an error code.

    ``code`` is RocketMQ's response code, ``remark`` the peer's text, ``address`` who said it.
    """

    code: int = -1
    hint: ClassVar[str] = ""
    _by_code: ClassVar[dict[int, type[BrokerError]]] = {}

    def __init_subclass__(cls, *, code: int | None = None) -> None:
        if code is None:
            return  # a kind of what its base is
        if code in BrokerError._by_code:
            raise TypeError(f"response code {code} already has a class")
        cls.code = code
        BrokerError._by_code[code] = cls

    def __init__(self, remark: str = "", *, code: int | None = None, address: str = "") -> None:
        if code is not None:
            self.code = code
        self.remark = remark
        self.address = address
        where = f" from {address}" if address else ""
        hint = f"; {self.hint}" if self.hint else ""
        super().__init__(f"code {self.code}{where}: {remark or 'no remark'}{hint}")

    @staticmethod
    def from_response(code: int, remark: str | None, address: str = "") -> BrokerError:
        """The error of the class that belongs to ``code``."""
        error_type = BrokerError._by_code.get(code, BrokerError)
        if error_type is BrokerSystemError and ACL_EXCEPTION in (remark or ""):
            error_type = AccessDeniedError
        return error_type(remark or "", code=code, address=address)


class BrokerSystemError(BrokerError, code=1):
    """SYSTEM_ERROR: the peer failed; the remark says how."""


class AccessDeniedError(BrokerSystemError):
    """The broker's access control (``aclEnable``) refused the account, its signature, or what it
    asked for; the remark says which."""

    hint = "examine credentials (access key, secret key), and at what the account may do there"


class BrokerBusyError(BrokerError, code=2):
    """SYSTEM_BUSY: flow control; try again later."""


class RequestCodeNotSupportedError(BrokerError, code=3):
    """REQUEST_CODE_NOT_SUPPORTED."""


class MessageIllegalError(BrokerError, code=13):
    """MESSAGE_ILLEGAL: body, topic or properties over a limit."""


class ServiceNotAvailableError(BrokerError, code=14):
    """SERVICE_NOT_AVAILABLE: the store does not take writes."""


class NoPermissionError(BrokerError, code=16):
    """NO_PERMISSION: broker, topic or group forbids it."""

    hint = "change the permission of the topic or the group, or brokerPermission of the broker"


class TopicNotFoundError(BrokerError, code=17):
    """TOPIC_NOT_EXIST."""

    hint = "create the topic, or start the broker with autoCreateTopicEnable=true"


class NotFoundError(BrokerError, code=22):
    """QUERY_NOT_FOUND."""


class SubscriptionParseError(BrokerError, code=23):
    """SUBSCRIPTION_PARSE_FAILED."""


class SubscriptionNotFoundError(BrokerError, code=24):
    """SUBSCRIPTION_NOT_EXIST."""


class SubscriptionNotLatestError(BrokerError, code=25):
    """SUBSCRIPTION_NOT_LATEST."""


class GroupNotFoundError(BrokerError, code=26):
    """SUBSCRIPTION_GROUP_NOT_EXIST."""

    hint = "create the group, or start the broker with autoCreateSubscriptionGroup=true"


class ConsumerNotOnlineError(BrokerError, code=206):
    """CONSUMER_NOT_ONLINE."""


class ConsumeTimeoutError(BrokerError, code=207):
    """CONSUME_MSG_TIMEOUT: a consumer that the broker asked did not answer in time."""


class AccountUpdateError(BrokerError, code=209):
    """UPDATE_AND_CREATE_ACL_CONFIG_FAILED."""


class AccountDeleteError(BrokerError, code=210):
    """DELETE_ACL_CONFIG_FAILED: the broker has no such account, say."""


class WhiteListUpdateError(BrokerError, code=211):
    """UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED."""
