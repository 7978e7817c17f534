"""Access control of brokers (``plain_acl.yml``): accounts, the global white list, versions.

A broker without access control may not answer at all (RocketMQ's), or refuses the code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kerolox.admin.answers import Members, read_object
from kerolox.admin.asking import all_answers, do_on_each, targets
from kerolox.admin.cluster import ClusterRequests
from kerolox.client.core.checking import checked
from kerolox.errors import ClientError, RemoteProtocolError
from kerolox.protocol import fastjson
from kerolox.protocol.bodies import DataVersion
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.names import ACL_PERMISSIONS

if TYPE_CHECKING:
    from collections.abc import Iterable


KEY_CHARACTERS_MIN = 7
"""Shortest access key and secret key (``AclConstants.ACCESS_KEY_MIN_LENGTH`` and its
counterpart)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """An account of a broker (``PlainAccessConfig``)."""

    access_key: str
    secret_key: str = ""
    """Empty in an update: it stays as it is."""
    white_remote_address: str = ""
    """From where no signature is needed."""
    is_admin: bool = False
    default_topic_permission: str = ""
    """One of ``ACL_PERMISSIONS``; empty: the broker's default, DENY."""
    default_group_permission: str = ""
    topic_permissions: tuple[str, ...] = ()
    """``topic=permission`` each."""
    group_permissions: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Without the secret."""
        return f"Account(access_key={self.access_key!r}, is_admin={self.is_admin})"


@dataclass(frozen=True, slots=True)
class AclVersion:
    """Which version of its access control a broker has (``clusterAclConfigVersion``)."""

    cluster: str
    broker_name: str
    address: str
    version: DataVersion
    files: dict[str, DataVersion]
    """By path on the broker; of brokers before 4.9 none."""


@dataclass(frozen=True, slots=True)
class AclConfig:
    """All of a broker's access control; only brokers before 4.9.8 tell it."""

    global_white_addresses: tuple[str, ...]
    accounts: tuple[Account, ...]


@checked()
class AclRequests(ClusterRequests):
    """Asks about accounts, and changes them."""

    async def put_account(
        self, account: Account, *, cluster: str = "", broker: str = ""
    ) -> list[str]:
        """Make or change an account (``updateAclConfig``, code 50); on whom.

        Args:
            account: all of it.
            cluster: on its masters; empty: of the only one there is.
            broker: ``host:port`` of one broker; it alone then.

        Raises:
            ClientError: a key or a permission is none; no such cluster; or some did it and some did
                not: the text says who.
            AccountUpdateError: the broker refused.
            BrokerError, RemotingError: none did it.
        """
        _check_account(account)
        fields = {
            "accessKey": account.access_key,
            "secretKey": account.secret_key or None,
            "whiteRemoteAddress": account.white_remote_address or None,
            "admin": account.is_admin,
            "defaultTopicPerm": account.default_topic_permission or None,
            "defaultGroupPerm": account.default_group_permission or None,
            "topicPerms": ",".join(account.topic_permissions) or None,
            "groupPerms": ",".join(account.group_permissions) or None,
        }
        return await do_on_each(
            await targets(self, cluster=cluster, broker=broker),
            lambda a: self.access.ask(a, RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, fields),
            f"account {account.access_key!r} could not be made",
        )

    async def delete_account(
        self, access_key: str, *, cluster: str = "", broker: str = ""
    ) -> list[str]:
        """Delete an account (``deleteAclConfig``, code 51); on whom. Arguments and errors: see
        :meth:`put_account`; AccountDeleteError: the broker has no such account.
        """
        fields = {"accessKey": access_key}
        return await do_on_each(
            await targets(self, cluster=cluster, broker=broker),
            lambda a: self.access.ask(a, RequestCode.DELETE_ACL_CONFIG, fields),
            f"account {access_key!r} could not be deleted",
        )

    async def put_global_white_addresses(
        self,
        addresses: Iterable[str],
        *,
        file: str = "",
        cluster: str = "",
        broker: str = "",
    ) -> list[str]:
        """Replace the list of addresses from which all is allowed (``updateGlobalWhiteAddr``, code
        53); on whom.

        Args:
            addresses: for example ``10.10.15.*`` or ``192.168.0.{1,2}``.
            file: path of the file on the broker; empty: its default one.
            cluster: on its masters; empty: of the only one there is.
            broker: ``host:port`` of one broker; it alone then.

        Raises:
            ClientError: no such cluster; or some did it and some did not: the text says who.
            WhiteListUpdateError: the broker refused.
            BrokerError, RemotingError: none did it.
        """
        fields = {"globalWhiteAddrs": ",".join(addresses), "aclFileFullPath": file}
        return await do_on_each(
            await targets(self, cluster=cluster, broker=broker),
            lambda a: self.access.ask(a, RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, fields),
            "the global white list could not be set",
        )

    async def acl_versions(self, *, cluster: str = "", broker: str = "") -> list[AclVersion]:
        """The version of each broker's access control (``clusterAclConfigVersion``, code 52).

        Args:
            cluster: its masters; empty: of the only one there is.
            broker: ``host:port`` of one broker; it alone then.

        Raises:
            ClientError: no such cluster.
            RequestCodeNotSupportedError: a broker has no access control.
            RequestTimeoutError: RocketMQ's has none.
            BrokerError, RemotingError: a broker refused or does not answer.
        """

        async def ask(address: str) -> AclVersion:
            response = await self.access.ask(address, RequestCode.GET_BROKER_CLUSTER_ACL_INFO)
            fields = response.ext_fields
            version = _versions(fields.get("version") or "{}", address)
            files = _versions(fields.get("allAclFileVersion") or "{}", address)
            return AclVersion(
                fields.get("clusterName") or "",
                fields.get("brokerName") or "",
                fields.get("brokerAddr") or address,
                version.struct(DataVersion),
                {path: files.members(path).struct(DataVersion) for path in files.own_names()},
            )

        addresses = await targets(self, cluster=cluster, broker=broker)
        return list((await all_answers(addresses, ask)).values())

    async def acl_config(self, broker: str) -> AclConfig:
        """All of a broker's access control, secrets included (code 54, of brokers before 4.9.8).

        Raises:
            RequestCodeNotSupportedError: the broker is of 4.9.8 or later, which tells it to nobody.
            BrokerError, RemotingError: the broker refused or does not answer.
        """
        response = await self.access.ask(broker, RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG)
        answer = await read_object(response, "the access control", broker)
        accounts = tuple(
            Account(
                access_key=each.text("accessKey"),
                secret_key=each.text("secretKey"),
                white_remote_address=each.text("whiteRemoteAddress"),
                is_admin=each.flag("admin"),
                default_topic_permission=each.text("defaultTopicPerm"),
                default_group_permission=each.text("defaultGroupPerm"),
                topic_permissions=each.texts("topicPerms"),
                group_permissions=each.texts("groupPerms"),
            )
            for each in answer.objects("plainAccessConfigs")
        )
        return AclConfig(answer.texts("globalWhiteAddrs"), accounts)


def _check_account(account: Account) -> None:
    for name, key in (("access key", account.access_key), ("secret key", account.secret_key)):
        if len(key) < KEY_CHARACTERS_MIN and (key or name == "access key"):
            raise ClientError(
                f"the {name} has {len(key)} characters; brokers take {KEY_CHARACTERS_MIN} or more"
            )
    given = [account.default_topic_permission, account.default_group_permission]
    for item in (*account.topic_permissions, *account.group_permissions):
        name, separator, permission = item.partition("=")
        if not name or not separator or "," in item:
            raise ClientError(f"permission {item!r} is none; write name=PUB|SUB")
        given.append(permission)
    for permission in given:
        if permission and permission not in ACL_PERMISSIONS:
            raise ClientError(f"permission {permission!r} is none of {', '.join(ACL_PERMISSIONS)}")


def _versions(text: str, address: str) -> Members:
    where = f"the versions of {address}"
    try:
        return Members(fastjson.loads(text), where)
    except fastjson.FastjsonError as error:
        raise RemoteProtocolError(f"{where} are no JSON: {error}") from None
