"""Contexts: clusters by name, so that commands need no addresses.

They are kept in ``$XDG_CONFIG_HOME/kerolox/contexts.json`` (``~/.config``), for their user alone to
read. A context names files with keys; it holds none itself. What is stronger comes first: the
options of a command, ``--context`` or ``$KEROLOX_CONTEXT``, other variables, the selected context,
the defaults.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from kerolox.config import nearest, read_regular, replace_file
from kerolox.errors import ConfigError
from kerolox.text import printable
from kerolox.user_folders import CONFIG, user_folder

FILE_BYTES_MAX = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Context(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """How a cluster is reached."""

    name_server: str
    """``host:port`` of name servers, joined by ``;``."""
    credentials_file: str = ""
    """Keys of an account, as ``conf/tools.yml`` or ``~/key`` have them; empty: none."""
    tls: bool = False
    """Encrypt connections; the system's authorities are trusted."""
    tls_config: str = ""
    """A file of ``tls.client.*``; empty: none."""
    description: str = ""


class Contexts(msgspec.Struct, rename="camel", omit_defaults=True):
    """The file."""

    selected: str = ""
    """The one that commands use; empty: none."""
    contexts: dict[str, Context] = {}

    def find(self, name: str) -> Context:
        """One by its name; ConfigError: there is none; the text says which there are."""
        found = self.contexts.get(name)
        if found is None:
            best = nearest(name, self.contexts)
            hint = f"did you mean {best!r}?" if best else "kerolox context add makes one"
            known = ", ".join(sorted(self.contexts)) or "none"
            raise ConfigError(f"there is no context {printable(name)!r} (known: {known}); {hint}")
        return found


def contexts_file(environment: Mapping[str, str]) -> Path:
    """Where contexts are kept."""
    return user_folder(CONFIG, environment) / "contexts.json"


def read_contexts(path: Path) -> Contexts:
    """All contexts; none where there is no file; ConfigError: it can't be read."""
    try:
        return msgspec.json.decode(read_regular(path, FILE_BYTES_MAX), type=Contexts)
    except FileNotFoundError:
        return Contexts()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is no file of contexts: {error}; mend or remove it") from None


def write_contexts(path: Path, contexts: Contexts) -> None:
    """Keep them; after an OSError the file is as before."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    data = msgspec.json.format(msgspec.json.encode(contexts), indent=2) + b"\n"
    if not path.exists():
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
    replace_file(path, lambda file: file.write(data), keeps_backup=False)


def check_context_name(name: str) -> None:
    """Refuse by a ConfigError a name that does not fit a shell's completion."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{printable(name)!r} is no name of a context; use at most 64 letters, digits, "
            "and . _ - within"
        )


def context_in_use(name: str | None, environment: Mapping[str, str]) -> Context | None:
    """The context that a command uses; None: none. ConfigError: there is no such context, or the
    file can't be read.

    ``name``: what ``--context`` or ``$KEROLOX_CONTEXT`` says; None or empty: the selected one. The
    variables of ``environment`` say where the file is.
    """
    kept = read_contexts(contexts_file(environment))
    chosen = name or kept.selected
    return kept.find(chosen) if chosen else None
