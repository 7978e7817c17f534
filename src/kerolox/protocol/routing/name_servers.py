"""Whether what answers is a name server: the port of a broker is given for one easily."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kerolox.errors import RequestCodeNotSupportedError
from kerolox.protocol.codes import RequestCode, ResponseCode

if TYPE_CHECKING:
    from kerolox.protocol.command import RemotingCommand

NOT_A_NAME_SERVER = (
    "what answers there speaks RocketMQ, and is no name server; give the port of a name server"
    " (9876 as a rule), not that of a broker"
)

KNOWN_TO_ALL = frozenset(
    (
        RequestCode.PUT_KV_CONFIG,
        RequestCode.GET_KV_CONFIG,
        RequestCode.GET_BROKER_CLUSTER_INFO,
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
        RequestCode.DELETE_TOPIC_IN_NAMESRV,
        RequestCode.GET_KVLIST_BY_NAMESPACE,
        RequestCode.GET_TOPICS_BY_CLUSTER,
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS,
        RequestCode.WIPE_WRITE_PERM_OF_BROKER,
    )
)
"""Requests that every name server answers, of RocketMQ 4 too."""


def raise_for_name_server(answer: RemotingCommand, address: str) -> None:
    """BrokerError, unless it is an answer of code 0 to a request that every name server knows.
    Where the request is unknown the text says that what answers is no name server.
    """
    if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        raise RequestCodeNotSupportedError(NOT_A_NAME_SERVER, address=address)
    answer.raise_for_code(address)
