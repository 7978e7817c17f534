"""Forms of a page, filled in as a browser does it: fields that are there, others as they are."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser
from urllib.parse import urlencode, urlsplit

__all__ = ["Form", "forms_of"]


@dataclass
class Form:
    """One form."""

    action: str
    fields: list[tuple[str, str]] = field(default_factory=list)
    """What it sends as it is."""
    choices: dict[str, list[str]] = field(default_factory=dict)
    """What may be chosen, of boxes to tick and lists."""

    def filled(self, given: dict[str, object]) -> str:
        """What is posted.

        Args:
            given: name → value, or several values of ticked boxes.
        """
        known = {name for name, _ in self.fields} | self.choices.keys()
        assert given.keys() <= known, f"{self.action} has no {given.keys() - known}"
        pairs = [pair for pair in self.fields if pair[0] not in given]
        for name, value in given.items():
            values = [str(each) for each in value] if isinstance(value, list) else [str(value)]
            allowed = self.choices.get(name)
            assert allowed is None or set(values) <= set(allowed), (name, values, allowed)
            pairs += [(name, each) for each in values]
        return urlencode(pairs)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.forms: list[Form] = []
        self._form: Form | None = None
        self._select = self._area = ""
        self._is_chosen = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        of = {name: value or "" for name, value in attrs}
        if tag == "form":
            self._form = Form(urlsplit(of.get("action", "")).path)
            self.forms.append(self._form)
        if self._form is None:
            return
        name = of.get("name", "")
        if tag == "input" and of.get("type") == "checkbox":
            self._form.choices.setdefault(name, []).append(of.get("value", "on"))
            if "checked" in of:
                self._form.fields.append((name, of.get("value", "on")))
        elif tag == "input" and name:
            self._form.fields.append((name, of.get("value", "")))
        elif tag == "select":
            self._select = name
            self._form.choices[name] = []
        elif tag == "option" and self._select and "value" in of:
            self._choice(of["value"], is_chosen="selected" in of)
        elif tag == "option" and self._select:
            self._area, self._is_chosen = self._select, "selected" in of
        elif tag == "textarea":
            self._area = name
            self._form.fields.append((name, ""))

    def handle_data(self, data: str) -> None:
        if self._form is None or not self._area:
            return
        if self._area == self._select:
            self._choice(data.strip(), is_chosen=self._is_chosen)
            self._area = ""
        else:
            # A browser leaves out the line's end that begins a text.
            self._form.fields[-1] = self._area, data.removeprefix("\n")

    def _choice(self, value: str, *, is_chosen: bool) -> None:
        assert self._form is not None
        choices = self._form.choices[self._select]
        choices.append(value)
        if len(choices) == 1:
            self._form.fields.append((self._select, value))
        elif is_chosen:
            self._form.fields[-1] = self._select, value

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self._form = None
        elif tag == "select":
            self._select = ""
        elif tag == "textarea":
            self._area = ""


def forms_of(page: str) -> list[Form]:
    """All forms, in order."""
    reader = _Reader()
    reader.feed(page)
    return reader.forms
