"""What is replaced while a simulation runs, and put back afterwards."""

from __future__ import annotations

from typing import Any

_MISSING = object()


class Patches:
    """A stack of replaced attributes. A context manager: the end puts everything back."""

    def __init__(self) -> None:
        """Nothing is replaced."""
        self._undo: list[tuple[Any, str, Any]] = []
        self._items: list[tuple[dict[str, Any], str, Any]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Replace an attribute of a module or class."""
        held = vars(owner).get(name, _MISSING) if hasattr(owner, "__dict__") else _MISSING
        self._undo.append((owner, name, held))
        setattr(owner, name, value)

    def set_item(self, held: dict[str, Any], name: str, value: Any) -> None:
        """Replace what a dictionary has."""
        self._items.append((held, name, held[name]))
        held[name] = value

    def close(self) -> None:
        """Put everything back, the last first."""
        while self._items:
            held_by, name, held = self._items.pop()
            held_by[name] = held
        while self._undo:
            owner, name, held = self._undo.pop()
            if held is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, held)

    def __enter__(self) -> Patches:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
