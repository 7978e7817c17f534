"""What requests ask of the files of accounts: codes 50 to 54 (``PlainPermissionManager``).

New accounts go to the default file; one that is there is changed in the file that it stands in, and
deleted in all. All of this blocks, and what is wrong changes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from kerolox.errors import ConfigError
from kerolox.protocol.bodies import DataVersion
from kerolox.security.access.addresses import parse_addresses
from kerolox.security.access.documents import AccountText
from kerolox.security.access.edits import check_account, delete_account, put_account, put_white
from kerolox.security.access.files import AclFiles
from kerolox.text import printable


def put(
    files: AclFiles, account: AccountText, now_ms: int
) -> tuple[AccountText | None, AccountText | None]:
    """Make an account, or change those of its members that are given (code 50); gives the account
    before and after. ConfigError: a member is wrong, or the file is or would be.
    """
    with files.lock:
        files.poll(at_once=True)
        owners = _owners(files, account.access_key)
        try:
            check_account(account, is_new=not owners)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        path = owners[0] if owners else files.places.file
        old = text_of(files, account.access_key)
        files.change(path, put_account(account), now_ms)
        return old, text_of(files, account.access_key)


def delete(files: AclFiles, access_key: str, now_ms: int) -> AccountText | None:
    """Take an account out of all files (code 51); returns what it was. ConfigError: there is none,
    or a file is wrong.
    """
    with files.lock:
        files.poll(at_once=True)
        owners = _owners(files, access_key)
        if not owners:
            raise ConfigError(
                f"The accesskey[{printable(access_key, characters_max=64)}] corresponding to "
                "accessConfig has been deleted failed: there is no such account"
            )
        old = text_of(files, access_key)
        for path in owners:
            files.change(path, delete_account(access_key), now_ms)
        return old


def replace_white(
    files: AclFiles, addresses: Iterable[str], file: str, now_ms: int
) -> tuple[list[str], list[str]]:
    """Replace the global white list of one file (code 53); gives the list before and after.

    Blank addresses count for nothing. ``file`` is the path of one in force; empty: the default one.
    ConfigError: there is no such file, an address is none, or the file is wrong.
    """
    texts = [each for each in addresses if each.strip()]
    for each in texts:
        try:
            parse_addresses(each)
        except ValueError as error:
            raise ConfigError(str(error)) from None
    with files.lock:
        files.poll(at_once=True)
        path = Path(os.path.abspath(file)) if file else files.places.file
        documents = files.documents()
        if path not in documents:
            raise ConfigError(
                f"{printable(file)} is no file of accounts of this broker; clusterAclConfigVersion "
                "lists them"
            )
        files.change(path, put_white(texts), now_ms)
        return list(documents[path].white_texts), texts


def versions(files: AclFiles) -> dict[Path, DataVersion]:
    """The version of each file (code 52)."""
    with files.lock:
        return {path: files.version(path) for path in files.documents()}


def described(files: AclFiles) -> tuple[list[str], list[AccountText]]:
    """White lists and accounts as they are written, each account once (code 54)."""
    white: list[str] = []
    accounts: dict[str, AccountText] = {}
    for document in files.documents().values():
        white.extend(document.white_texts)
        for text in document.texts:
            accounts.setdefault(text.access_key, text)
    return white, list(accounts.values())


def text_of(files: AclFiles, access_key: str) -> AccountText | None:
    """An account as the file that counts for it has it."""
    for document in files.documents().values():
        for text in document.texts:
            if text.access_key == access_key:
                return text
    return None


def _owners(files: AclFiles, access_key: str) -> list[Path]:
    """Files that have the account; the first one's counts."""
    return [
        path
        for path, document in files.documents().items()
        if any(text.access_key == access_key for text in document.texts)
    ]
