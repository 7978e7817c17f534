"""``kerolox acl``: the accounts of brokers and their white list. Secrets are never printed."""

from __future__ import annotations

import dataclasses
from typing import IO, TYPE_CHECKING, NamedTuple

import click

from kerolox.cli import completing
from kerolox.cli.cluster_options import Place, name_server_option, place_options
from kerolox.cli.confirming import (
    Consent,
    confirm,
    consent_options,
    dry_run_option,
    print_dry_run,
)
from kerolox.cli.connecting import on_cluster
from kerolox.cli.grouping import CommandGroup
from kerolox.cli.output import complain, output_option, print_line
from kerolox.cli.rows import (
    Column,
    columns_of,
    is_text,
    number_column,
    show_row,
    show_rows,
    time_column,
)
from kerolox.protocol.names import ACL_PERMISSIONS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kerolox.admin import Account, AclConfig, Admin
    from kerolox.errors import KeroloxError

SECRET_BYTES_MAX = 4096
"""Of ``--secret-file``."""


@click.group(cls=CommandGroup)
def acl() -> None:
    """Examine and change accounts and white lists of brokers (plain_acl.yml).

    \b
    kerolox acl set shop-service --secret-file secret --topic 'Orders=PUB|SUB' --group shop=SUB
    kerolox acl show shop-service
    kerolox acl white-list 10.0.0.* 192.168.1.7
    """


class _AclAnswers(NamedTuple):
    configs: dict[str, AclConfig]
    """By broker."""
    silent: dict[str, KeroloxError]
    """Those that tell nothing: RocketMQ 4.9.8, or without access control."""


async def _ask(admin: Admin, place: Place) -> _AclAnswers:
    from kerolox.admin.asking import answers_of, targets

    addresses = await targets(admin, **place._asdict())
    return _AclAnswers(*await answers_of(addresses, admin.acl_config))


async def _without_access_control(admin: Admin, addresses: Iterable[str]) -> list[str]:
    """Those brokers that have aclEnable=false."""
    from kerolox.admin.asking import answers_of

    found, _ = await answers_of(addresses, admin.broker_settings)
    return [each for each, settings in found.items() if settings.get("aclEnable") == "false"]


def _complain_of_silent(silent: dict[str, KeroloxError]) -> None:
    for address, error in silent.items():
        if "aclEnable" in str(error):
            complain(f"kerolox: {address} has no access control: {error}")
            continue
        complain(
            f"kerolox: {address} does not show its accounts: {error}; a broker of RocketMQ 4.9.8 "
            "or later shows them to nobody: kerolox acl version, and its file"
        )


def _account_row(address: str, account: Account) -> dict[str, object]:
    return {
        "broker": address,
        "accessKey": account.access_key,
        "admin": account.is_admin,
        "whiteRemoteAddress": account.white_remote_address,
        "defaultTopicPerm": account.default_topic_permission,
        "defaultGroupPerm": account.default_group_permission,
        "topicPerms": list(account.topic_permissions),
        "groupPerms": list(account.group_permissions),
    }


def _joined(value: object) -> str:
    return ", ".join(value) if isinstance(value, list) else ""


_ACCOUNT_COLUMNS = (
    Column("broker", "BROKER"),
    Column("accessKey", "ACCOUNT"),
    Column("admin", "ADMIN"),
    Column("whiteRemoteAddress", "WITHOUT SIGNATURE FROM"),
    Column("defaultTopicPerm", "TOPICS"),
    Column("defaultGroupPerm", "GROUPS"),
    Column("topicPerms", "SOME TOPICS", text=_joined),
    Column("groupPerms", "SOME GROUPS", text=_joined),
)


@acl.command("list")
@place_options
@output_option
@name_server_option
def list_command(place: Place, output: str, name_server: str) -> None:
    """Print the accounts of each broker, as far as it shows them."""
    answers = on_cluster(name_server, lambda admin: _ask(admin, place))
    rows = [
        _account_row(address, account)
        for address, config in answers.configs.items()
        for account in config.accounts
    ]
    show_rows(rows, _ACCOUNT_COLUMNS, output)
    _complain_of_silent(answers.silent)


@acl.command("show")
@click.argument("name", metavar="ACCOUNT", shell_complete=completing.accounts)
@place_options
@output_option
@name_server_option
def show_command(name: str, place: Place, output: str, name_server: str) -> None:
    """Print what an account may do, on each broker."""
    answers = on_cluster(name_server, lambda admin: _ask(admin, place))
    rows = [
        _account_row(address, account)
        for address, config in answers.configs.items()
        for account in config.accounts
        if account.access_key == name
    ]
    _complain_of_silent(answers.silent)
    if not rows:
        raise click.ClickException(f"no broker that shows its accounts has {name}")
    show_rows(rows, _ACCOUNT_COLUMNS, output)
    for address in sorted(answers.configs.keys() - {row["broker"] for row in rows}):
        complain(f"kerolox: {address} has no account {name}")


@acl.command("version")
@place_options
@output_option
@name_server_option
def version_command(place: Place, output: str, name_server: str) -> None:
    """Print which version of its accounts each broker has: of each file, if it says so."""

    rows = [
        {
            "broker": each.address,
            "brokerName": each.broker_name,
            "file": path,
            "counter": version.counter,
            "timestamp": version.timestamp,
        }
        for each in on_cluster(name_server, lambda admin: admin.acl_versions(**place._asdict()))
        for path, version in (each.files or {"": each.version}).items()
    ]
    columns = (
        Column("broker", "BROKER"),
        Column("file", "FILE"),
        number_column("counter", "CHANGES"),
        time_column("timestamp", "LAST CHANGE"),
    )
    show_rows(rows, columns, output)


_permission_type = click.Choice(ACL_PERMISSIONS)


@acl.command("set")
@click.argument("name", metavar="ACCOUNT", shell_complete=completing.accounts)
@click.option(
    "--secret-file",
    type=click.File("rb"),
    metavar="FILE",
    help="Its new secret: the first line of a file; '-': of stdin. A new account needs one.",
)
@click.option("--admin/--no-admin", default=None, help="It may do everything.")
@click.option(
    "--white", metavar="ADDRESS", help="From where it needs no signature, such as 10.0.0.*."
)
@click.option(
    "--default-topic",
    type=_permission_type,
    metavar="PERM",
    help="For topics that are not named: DENY, PUB, SUB or 'PUB|SUB'.",
)
@click.option(
    "--default-group",
    type=_permission_type,
    metavar="PERM",
    help="For groups that are not named: the same.",
)
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC=PUB|SUB",
    help="What it may do with a topic; all that are given replace those that the account has.",
)
@click.option("--group", "groups", multiple=True, metavar="GROUP=SUB", help="The same for a group.")
@dry_run_option
@place_options
@output_option
@name_server_option
def set_command(
    name: str,
    secret_file: IO[bytes] | None,
    admin: bool | None,
    white: str | None,
    default_topic: str | None,
    default_group: str | None,
    topics: tuple[str, ...],
    groups: tuple[str, ...],
    dry_run: bool,
    place: Place,
    output: str,
    name_server: str,
) -> None:
    """Create an account, or change it: what is not given stays as it is."""
    from kerolox.admin import Account

    wanted = Account(
        access_key=name,
        secret_key=_secret(secret_file),
        white_remote_address=white or "",
        is_admin=bool(admin),
        default_topic_permission=default_topic or "",
        default_group_permission=default_group or "",
        topic_permissions=topics,
        group_permissions=groups,
    )
    rows = on_cluster(
        name_server,
        lambda asks: _set(asks, place, wanted, keeps_admin=admin is None, dry_run=dry_run),
    )
    columns = Column("broker", "BROKER"), Column("change", "CHANGE")
    show_rows(rows, columns, output)
    if dry_run:
        print_dry_run(output)


def _secret(file: IO[bytes] | None) -> str:
    if file is None:
        return ""
    lines = file.read(SECRET_BYTES_MAX + 1).splitlines()
    try:
        secret = lines[0].decode() if lines and len(lines[0]) <= SECRET_BYTES_MAX else ""
    except UnicodeDecodeError:
        secret = ""
    if not secret:
        raise click.BadParameter("there is no secret in its first line", param_hint="--secret-file")
    return secret


async def _set(
    admin: Admin, place: Place, wanted: Account, *, keeps_admin: bool, dry_run: bool
) -> list[dict[str, object]]:
    from kerolox.admin.asking import do_on_each
    from kerolox.errors import ClientError

    answers = await _ask(admin, place)
    if off := await _without_access_control(admin, answers.silent):
        raise ClientError(
            f"broker {', '.join(off)} has no access control (aclEnable=false): set aclEnable=true "
            "in its settings and restart it, or name another one (--broker). Nothing was changed"
        )
    if answers.silent and keeps_admin:
        # The request always says whether it is one; left out it would be none any more.
        raise ClientError(
            f"broker {next(iter(answers.silent))} does not report whether {wanted.access_key} is "
            "an administrator; give --admin or --no-admin"
        )
    plan: dict[str, Account] = {}
    rows: list[dict[str, object]] = []
    for address in (*answers.configs, *answers.silent):
        old = _account_of(answers.configs.get(address), wanted.access_key)
        change = "set; what it was is not known"
        plan[address] = wanted
        if old is not None:
            # RocketMQ takes no account without its secret, and tells that as it tells the rest.
            plan[address] = dataclasses.replace(
                wanted,
                is_admin=old.is_admin if keeps_admin else wanted.is_admin,
                secret_key=wanted.secret_key or old.secret_key,
            )
            change = _change_text(old, plan[address])
        elif address in answers.configs:
            if not wanted.secret_key:
                raise ClientError(
                    f"broker {address} has no account {wanted.access_key}; a new one needs "
                    "--secret-file. Nothing was changed"
                )
            change = "new"
        rows.append({"broker": address, "change": change, "done": not dry_run})
    if not dry_run:
        await do_on_each(
            plan,
            lambda address: admin.put_account(plan[address], broker=address),
            f"account {wanted.access_key} could not be set",
        )
    return rows


def _account_of(config: AclConfig | None, access_key: str) -> Account | None:
    accounts = config.accounts if config is not None else ()
    return next((each for each in accounts if each.access_key == access_key), None)


def _change_text(old: Account, new: Account) -> str:
    parts = ["another secret"] if new.secret_key not in ("", old.secret_key) else []
    if old.is_admin != new.is_admin:
        parts.append(f"admin {old.is_admin} → {new.is_admin}")
    for what, field in (
        ("without signature from", "white_remote_address"),
        ("topics", "default_topic_permission"),
        ("groups", "default_group_permission"),
        ("some topics", "topic_permissions"),
        ("some groups", "group_permissions"),
    ):
        before, after = getattr(old, field), getattr(new, field)
        if after and before != after:
            parts.append(f"{what} {_shown(before)} → {_shown(after)}")
    return "; ".join(parts) or "nothing changes"


def _shown(value: str | tuple[str, ...]) -> str:
    text = value if isinstance(value, str) else ", ".join(value)
    return text or "none"


@acl.command("delete")
@click.argument("name", metavar="ACCOUNT", shell_complete=completing.accounts)
@place_options
@consent_options
@output_option
@name_server_option
def delete_command(
    name: str, place: Place, consent: Consent, output: str, name_server: str
) -> None:
    """Delete an account: who uses it is refused from then on."""
    from kerolox.admin.asking import do_on_each, targets
    from kerolox.errors import ClientError

    if not consent.yes:
        answers = on_cluster(name_server, lambda admin: _ask(admin, place))
        having = [
            a for a, config in answers.configs.items() if _account_of(config, name) is not None
        ]
        places = ", ".join(having) or "no broker that shows its accounts"
        complain(f"kerolox: account {name} is on {places}")
        _complain_of_silent(answers.silent)
        if not confirm(f"Delete account {name}?", consent, output, name_server):
            if not is_text(output):
                row: dict[str, object] = {"accessKey": name, "brokers": having, "done": False}
                show_row(row, columns_of(row), output)
            return

    async def work(admin: Admin) -> list[str]:
        addresses = await targets(admin, **place._asdict())
        off = await _without_access_control(admin, addresses)
        if len(off) == len(addresses):
            raise ClientError(
                "no broker has access control (aclEnable=false), so there is no account to delete"
            )
        for address in off:
            complain(f"kerolox: {address} has no access control (aclEnable=false); it is left out")
        if not off:
            return await admin.delete_account(name, **place._asdict())
        return await do_on_each(
            [each for each in addresses if each not in off],
            lambda address: admin.delete_account(name, broker=address),
            f"account {name} could not be deleted",
        )

    addresses = on_cluster(name_server, work)
    if is_text(output):
        print_line(f"account {name} deleted on {', '.join(addresses)}")
        return
    row = {"accessKey": name, "deletedOn": addresses, "done": True}
    show_row(row, columns_of(row), output)


@acl.command("white-list")
@click.argument("addresses", nargs=-1, metavar="[ADDRESS]...")
@dry_run_option
@place_options
@output_option
@name_server_option
def white_list_command(
    addresses: tuple[str, ...], dry_run: bool, place: Place, output: str, name_server: str
) -> None:
    """Print the addresses from which everything is allowed, or replace them by those given."""
    rows, silent = on_cluster(
        name_server, lambda admin: _white_lists(admin, place, addresses, dry_run)
    )
    columns = [Column("broker", "BROKER"), Column("addresses", "ADDRESSES", text=_joined)]
    if addresses:
        columns.append(Column("new", "NEW", text=_joined))
    show_rows(rows, columns, output)
    _complain_of_silent(silent)
    if addresses and dry_run:
        print_dry_run(output)


async def _white_lists(
    admin: Admin, place: Place, addresses: tuple[str, ...], dry_run: bool
) -> tuple[list[dict[str, object]], dict[str, KeroloxError]]:

    answers = await _ask(admin, place)
    rows: list[dict[str, object]] = [
        {"broker": address, "addresses": list(config.global_white_addresses)}
        for address, config in answers.configs.items()
    ]
    if addresses:
        rows += [{"broker": address, "addresses": []} for address in answers.silent]
        for row in rows:
            row |= {"new": list(addresses), "done": not dry_run}
        if not dry_run:
            await admin.put_global_white_addresses(addresses, **place._asdict())
    return rows, answers.silent
