"""Access control of brokers: accounts and white lists, never a secret."""

from __future__ import annotations

from starlette.responses import Response

from kerolox.admin import Account
from kerolox.console.acting import ActionResult, Actor
from kerolox.console.visit import Visit
from kerolox.errors import ClientError
from kerolox.protocol.names import ACL_PERMISSIONS

__all__ = ["delete", "put", "set_white_list", "show"]


async def show(visit: Visit) -> Response:
    """What each broker tells. RocketMQ 4.9.8 and Kerolox tell their version only."""
    cluster = visit.console.cluster
    found, silent = await cluster.ask_masters(visit.admin.acl_config)
    versions, failed = await cluster.ask_masters(
        lambda address: visit.admin.acl_versions(broker=address)
    )
    return visit.page(
        "acl.html",
        found=found,
        silent={name: str(error) for name, error in silent.items()},
        versions={name: each for name, each in versions.items() if each},
        failed={name: str(error) for name, error in failed.items()},
        clusters=sorted((await cluster.info()).clusters),
        permissions=ACL_PERMISSIONS,
    )


async def put(visit: Actor) -> ActionResult:
    """Make an account or change one. Its secret is in no page and in no audit line."""
    access_key = visit.required("accessKey")
    secret = visit.given("secretKey")
    account = Account(
        access_key=access_key,
        secret_key=secret,
        white_remote_address=visit.given("whiteRemoteAddress"),
        is_admin=visit.given("admin") == "true",
        default_topic_permission=visit.given("defaultTopicPerm"),
        default_group_permission=visit.given("defaultGroupPerm"),
        topic_permissions=tuple(visit.given("topicPerms").split()),
        group_permissions=tuple(visit.given("groupPerms").split()),
    )
    done = await visit.admin.put_account(account, cluster=visit.given("cluster"))
    return ActionResult(
        f"Account {access_key} is set on {', '.join(done)}.",
        visit.path("/acl"),
        {"accessKey": access_key},
        new={
            "admin": account.is_admin,
            "secret": "given" if secret else "as before",
            "whiteRemoteAddress": account.white_remote_address,
            "defaultTopicPerm": account.default_topic_permission,
            "defaultGroupPerm": account.default_group_permission,
            "topicPerms": " ".join(account.topic_permissions),
            "groupPerms": " ".join(account.group_permissions),
        },
    )


async def delete(visit: Actor) -> ActionResult:
    """Delete an account, whose key was typed once more."""
    access_key = visit.required("accessKey")
    if visit.given("again") != access_key:
        raise ClientError("type the account's key once more to delete it; nothing was deleted")
    done = await visit.admin.delete_account(access_key, cluster=visit.given("cluster"))
    return ActionResult(
        f"Account {access_key} is deleted on {', '.join(done)}.",
        visit.path("/acl"),
        {"accessKey": access_key},
    )


async def set_white_list(visit: Actor) -> ActionResult:
    """Replace the addresses from which everything is allowed."""
    addresses = visit.required("addresses").split()
    done = await visit.admin.put_global_white_addresses(addresses, cluster=visit.given("cluster"))
    return ActionResult(
        f"From {', '.join(addresses)} all is allowed on {', '.join(done)}.",
        visit.path("/acl"),
        new={"globalWhiteRemoteAddresses": " ".join(addresses)},
    )
