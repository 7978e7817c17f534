"""Name servers: key-values, orders of topics, write permissions of brokers, settings.

Each name server has its own tables, so what changes something goes to all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kerolox.admin.answers import read_object, read_properties
from kerolox.admin.asking import all_answers, do_on_each
from kerolox.admin.cluster import ClusterRequests
from kerolox.client.aio.network.lookups import number_of
from kerolox.client.core.checking import checked
from kerolox.errors import ClientError, NotFoundError
from kerolox.properties import format_properties
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.namesrv import (
    ORDER_TOPIC_CONFIG,
    BrokerNameHeader,
    KeyHeader,
    KeyValueHeader,
    NamespaceHeader,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kerolox.client.aio.network.access import Access


@checked()
class NameServerRequests(ClusterRequests):
    """Asks about name servers, and changes what they keep."""

    async def put_key_value(self, namespace: str, key: str, value: str) -> list[str]:
        """Set a key-value at all name servers (``updateKvConfig``, code 100); their addresses.

        Raises:
            ClientError: some took it and some did not: the text says who.
            BrokerError, RemotingError: none took it.
        """
        header = KeyValueHeader(namespace=namespace, key=key, value=value).encode()
        return await _send_to_all(
            self.access, RequestCode.PUT_KV_CONFIG, header, f"{key!r} could not be set"
        )

    async def get_key_value(self, namespace: str, key: str) -> str | None:
        """A key's value, as the first name server that answers has it (code 101); None: there is
        none. Errors: see ``Access.ask_name_server``.
        """
        header = KeyHeader(namespace=namespace, key=key).encode()
        try:
            response = await self.access.ask_name_server(RequestCode.GET_KV_CONFIG, header)
        except NotFoundError:
            return None
        return response.ext_fields.get("value") or ""

    async def delete_key_value(self, namespace: str, key: str) -> list[str]:
        """Delete a key at all name servers (``deleteKvConfig``, code 102); their addresses.
        Errors: see :meth:`put_key_value`.
        """
        header = KeyHeader(namespace=namespace, key=key).encode()
        what = f"{key!r} could not be deleted"
        return await _send_to_all(self.access, RequestCode.DELETE_KV_CONFIG, header, what)

    async def key_values(self, namespace: str) -> dict[str, str]:
        """All key-values of a namespace, sorted, as the first name server that answers has them
        (code 219); empty: there are none. Errors: see ``Access.ask_name_server``.
        """
        header = NamespaceHeader(namespace=namespace).encode()
        try:
            response = await self.access.ask_name_server(
                RequestCode.GET_KVLIST_BY_NAMESPACE, header
            )
        except NotFoundError:
            return {}
        answer = await read_object(response, "the key-values", "the name server")
        return dict(sorted(answer.text_table("table").items()))

    async def topic_order(self, topic: str) -> str | None:
        """The order of a topic, for example ``broker-a:4;broker-b:4`` (``updateOrderConf -m
        get``); None: it has none. Errors: see :meth:`get_key_value`.
        """
        return await self.get_key_value(ORDER_TOPIC_CONFIG, topic)

    async def put_topic_order(self, topic: str, order: str) -> list[str]:
        """Set the order of a topic at all name servers (``updateOrderConf -m put``); their
        addresses.

        Args:
            topic: its name.
            order: ``broker:queues`` of each broker, joined by ``;``.

        Raises:
            ClientError: that is no order; or some took it and some did not: the text says who.
            BrokerError, RemotingError: none took it.
        """
        for item in order.split(";"):
            broker, separator, count = item.rpartition(":")
            if not (broker.strip() and separator and count.strip().isdecimal()):
                raise ClientError(f"order {order!r} is none; write broker:queues, joined by ';'")
        return await self.put_key_value(ORDER_TOPIC_CONFIG, topic, order)

    async def delete_topic_order(self, topic: str) -> list[str]:
        """Delete the order of a topic at all name servers (``updateOrderConf -m delete``); their
        addresses. Errors: see :meth:`put_key_value`.
        """
        return await self.delete_key_value(ORDER_TOPIC_CONFIG, topic)

    async def wipe_write_permission(self, broker_name: str) -> dict[str, int]:
        """Have producers send to a broker no more (``wipeWritePerm``, code 205).

        It is a change of routes alone: the broker itself takes what it gets, and a registration
        that differs brings the permission back.

        Returns:
            How many topics lost it, by name server.

        Raises:
            BrokerError, RemotingError: of the first name server that did not do it.
        """
        return await _change_permission(
            self.access, RequestCode.WIPE_WRITE_PERM_OF_BROKER, broker_name, "wipeTopicCount"
        )

    async def add_write_permission(self, broker_name: str) -> dict[str, int]:
        """Undo :meth:`wipe_write_permission` (``addWritePerm``, code 327); how many topics got
        it, by name server. Errors: see there.
        """
        return await _change_permission(
            self.access, RequestCode.ADD_WRITE_PERM_OF_BROKER, broker_name, "addTopicCount"
        )

    async def name_server_settings(self) -> dict[str, dict[str, str]]:
        """The settings of each name server, by address (``getNamesrvConfig``, code 319).

        Raises:
            BrokerError, RemotingError: of the first name server that did not answer.
        """

        async def ask(address: str) -> dict[str, str]:
            response = await self.access.ask(address, RequestCode.GET_NAMESRV_CONFIG)
            return read_properties(response, "the settings", address)

        return await all_answers(self.access.name_servers, ask)

    async def update_name_server_settings(self, settings: Mapping[str, str]) -> list[str]:
        """Change settings of all name servers (``updateNamesrvConfig``, code 318); their addresses.

        Raises:
            ClientError: some took it and some did not: the text says who.
            NoPermissionError: a setting that may not be changed (``configBlackList``).
            BrokerError, RemotingError: none took it.
        """
        body = format_properties(settings).encode()
        return await do_on_each(
            self.access.name_servers,
            lambda address: self.access.ask(address, RequestCode.UPDATE_NAMESRV_CONFIG, body=body),
            "settings could not be changed",
        )


async def _send_to_all(
    access: Access, code: RequestCode, header: Mapping[str, str], what: str
) -> list[str]:
    return await do_on_each(access.name_servers, lambda a: access.ask(a, code, header), what)


async def _change_permission(
    access: Access, code: RequestCode, broker_name: str, field: str
) -> dict[str, int]:
    header = BrokerNameHeader(broker_name=broker_name).encode()

    async def change(address: str) -> int:
        return number_of(await access.ask(address, code, header), field, address)

    return await all_answers(access.name_servers, change)
