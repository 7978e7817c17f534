"""The accounts of access control (50 to 54): made, changed, deleted, told of.

Without ``aclEnable`` there are none. RocketMQ answers changes with their codes then, as here, and
questions not at all; here they have code 3. Secrets are in no answer and in no line of a log:
code 54, which brokers before 4.9.8 answered with all of them, leaves them out.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from kerolox.broker.context import Context
from kerolox.errors import BrokerError, ConfigError
from kerolox.protocol.bodies import encode_body
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.headers import AccessKeyHeader, AccountHeader, EmptyHeader, WhiteListHeader
from kerolox.remoting.router import Reply, Request, Router
from kerolox.security.access.watching import AccountsWatch

if TYPE_CHECKING:
    from kerolox.security.access.documents import AccountText

_OFF = "this broker has no accounts, since aclEnable is false"
_COMMA = re.compile(r",(?![^{}]*\})")
"""Between addresses; not one within braces, as in ``10.1.2.{3,4}``."""

# Brokers without accounts do without the modules that change them.
router: Router[Context] = Router()


@router.on(RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, AccountHeader.decode, changes=True)
async def put_account(broker: Context, header: AccountHeader, request: Request) -> Reply:
    """Make or change an account; answered when it is on disk and in force."""
    from kerolox.security.access import changes
    from kerolox.security.access.documents import AccountText

    account = AccountText(
        access_key=header.access_key,
        secret_key=header.secret_key,
        white=header.white_remote_address,
        is_admin=header.admin,
        default_topic=header.default_topic_perm,
        default_group=header.default_group_perm,
        topics=_split(header.topic_perms),
        groups=_split(header.group_perms),
    )
    work = partial(changes.put, account=account, now_ms=broker.now_ms())
    with _changing(broker, ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED) as watch:
        old, new = await watch.change(work)
    broker.audit.changed(request, "accessKey", header.access_key, _audited(old), _audited(new))
    return Reply()


@router.on(RequestCode.DELETE_ACL_CONFIG, AccessKeyHeader.decode, changes=True)
async def delete_account(broker: Context, header: AccessKeyHeader, request: Request) -> Reply:
    """Take an account out."""
    from kerolox.security.access import changes

    work = partial(changes.delete, access_key=header.access_key, now_ms=broker.now_ms())
    with _changing(broker, ResponseCode.DELETE_ACL_CONFIG_FAILED) as watch:
        old = await watch.change(work)
    broker.audit.changed(request, "accessKey", header.access_key, _audited(old))
    return Reply()


@router.on(RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, WhiteListHeader.decode, changes=True)
async def put_white_list(broker: Context, header: WhiteListHeader, request: Request) -> Reply:
    """Replace the global white list of a file."""
    from kerolox.security.access import changes

    work = partial(
        changes.replace_white,
        addresses=_COMMA.split(header.global_white_addrs),
        file=header.acl_file_full_path,
        now_ms=broker.now_ms(),
    )
    with _changing(broker, ResponseCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED) as watch:
        old, new = await watch.change(work)
    file = header.acl_file_full_path or str(watch.files.places.file)
    broker.audit.changed(request, "whiteList", file, {"addresses": old}, {"addresses": new})
    return Reply()


@router.on(RequestCode.GET_BROKER_CLUSTER_ACL_INFO, EmptyHeader.decode)
async def account_versions(broker: Context, header: EmptyHeader, request: Request) -> Reply:
    """The version of each file of accounts."""
    from kerolox.security.access import changes

    watch = _watch(broker, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
    versions = await watch.change(changes.versions)
    fields = {
        "version": encode_body(versions[watch.files.places.file]).decode(),
        "allAclFileVersion": encode_body(
            {str(path): version for path, version in versions.items()}
        ).decode(),
        "brokerName": broker.config.broker_name,
        "brokerAddr": broker.identity.address,
        "clusterName": broker.config.broker_cluster_name,
    }
    return Reply(fields=fields)


@router.on(RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG, EmptyHeader.decode)
async def accounts_without_secrets(broker: Context, header: EmptyHeader, request: Request) -> Reply:
    """All accounts and white lists, for tools of 4.6, with empty secrets."""
    from kerolox.security.access import changes

    watch = _watch(broker, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
    white, accounts = await watch.change(changes.described)
    body = {"globalWhiteAddrs": white, "plainAccessConfigs": [_members(each) for each in accounts]}
    return Reply(body=encode_body(body))


def _watch(broker: Context, code: ResponseCode) -> AccountsWatch:
    if broker.guards.accounts is None:
        raise BrokerError(_OFF, code=code)
    return broker.guards.accounts


@contextmanager
def _changing(broker: Context, code: ResponseCode) -> Iterator[AccountsWatch]:
    """The accounts, for a change whose failure is answered with ``code``."""
    watch = _watch(broker, code)
    try:
        yield watch
    except ConfigError as error:
        raise BrokerError(str(error), code=code) from None
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise BrokerError(
            f"nothing was changed: {where}{error.strerror or error}; the broker must be able to "
            "write the file of accounts and its folder",
            code=code,
        ) from None


def _split(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(text.split(","))


def _members(account: AccountText) -> dict[str, object]:
    """``PlainAccessConfig`` of RocketMQ, as JSON."""
    return {
        "accessKey": account.access_key,
        "admin": account.is_admin,
        "defaultGroupPerm": account.default_group,
        "defaultTopicPerm": account.default_topic,
        "groupPerms": account.groups,
        "secretKey": None,
        "topicPerms": account.topics,
        "whiteRemoteAddress": account.white,
    }


def _audited(account: AccountText | None) -> dict[str, object] | None:
    """What the audit line compares; of the secret, only whether it is another one."""
    if account is None:
        return None
    digest = hashlib.sha256((account.secret_key or "").encode()).hexdigest()
    return {**_members(account), "secretKey": digest}
