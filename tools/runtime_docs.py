"""Have the documentation show what programs see, where the source says it in another way.

An extension of griffe, which reads the source. There blocking methods have the first paragraphs of
their docstrings (``generate_sync.py``), and the stubs of packages have no ``__all__``
(``generate_names.py``).
"""

from __future__ import annotations

import inspect

import griffe

import kerolox.admin
from kerolox.admin.sync import _generated as admin
from kerolox.client import sync


class RuntimeDocs(griffe.Extension):
    """Takes names and docstrings from the modules and classes that are imported."""

    def on_package(self, *, pkg: griffe.Module, **_: object) -> None:
        """Change the package when it is read."""
        if pkg.name != kerolox.__name__:
            return
        pkg.exports = list(kerolox.__all__)
        for package in (kerolox.admin, kerolox.client, sync):
            pkg[package.__name__.removeprefix("kerolox.")].exports = list(package.__all__)
        clients = {each for name in sync.__all__ for each in _classes(getattr(sync, name))}
        for blocking in {admin.AdminRequests, *clients}:
            described = pkg[blocking.__module__.removeprefix("kerolox.")][blocking.__name__]
            for name, member in vars(blocking).items():
                text = inspect.getdoc(member)
                if text and name in described.members and described[name].docstring is not None:
                    described[name].docstring.value = text


def _classes(found: object) -> list[type]:
    """Those that are made by the tool, of a public name's."""
    bases = found.__mro__ if isinstance(found, type) else ()
    return [each for each in bases if each.__module__ == "kerolox.client.sync._generated"]
