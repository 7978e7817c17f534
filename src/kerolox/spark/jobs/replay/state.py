"""How far a replay is, in a folder: its plan, and which units are done.

Of a transactional replay the folder has the sink's decisions too. What a unit holds is written
before its decision, and that the unit is done behind it. So a run that finds a decision knows what
was sent, and sends nothing of that unit again.
"""

from __future__ import annotations

import dataclasses
import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from kerolox.spark.jobs.frame.errors import JobError
from kerolox.spark.jobs.frame.files import Folder
from kerolox.spark.jobs.replay.options import ReplayOptions
from kerolox.spark.jobs.replay.sending import Counts
from kerolox.spark.jobs.replay.units import Unit

VERSION = 1
PLAN = "replay.json"
DONE = "done.json"
SENT = "sent.json"
DECISIONS = "kerolox-sink"


@dataclass(frozen=True, slots=True, kw_only=True)
class SentRows:
    """What is sent.

    Args:
        units: so many, from the first one on.
        rows, size: of them; bytes of bodies.
        by_topic: as of :class:`~kerolox.spark.jobs.replay.sending.Counts`.
    """

    units: int = 0
    rows: int = 0
    size: int = 0
    by_topic: Mapping[str, int] = field(default_factory=dict)

    def plus(self, counts: Counts) -> SentRows:
        """With one more unit."""
        before = Counts(rows=self.rows, size=self.size, by_topic=self.by_topic)
        both = before.plus(counts)
        return SentRows(
            units=self.units + 1, rows=both.rows, size=both.size, by_topic=both.by_topic
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """What a replay has to do."""

    replay: str
    units: tuple[Unit, ...]


class ReplayState:
    """The state of a replay; without a folder it is forgotten at the end."""

    def __init__(self, options: ReplayOptions) -> None:
        self._options = options
        self._folder = Folder(options.state) if options.state else None

    def plan(self, make: Callable[[], list[Unit]]) -> Plan:
        """The plan of the run that this one goes on with, or a new one. ConfigError: the folder is
        that of another replay. JobError: it was written by another version.
        """
        if self._folder is None:
            return Plan(uuid.uuid4().hex, tuple(make()))
        found = cast("dict[str, Any] | None", self._folder.read_json(PLAN))
        fingerprint = json.loads(json.dumps(self._options.fingerprint()))
        if found is None:
            if self._folder.names():
                raise self._options.error(
                    "state", f"{self._folder.uri} is no state of a replay; name an empty folder"
                )
            plan = Plan(uuid.uuid4().hex, tuple(make()))
            units = [dataclasses.asdict(unit) for unit in plan.units]
            values = {"version": VERSION, "id": plan.replay, "options": fingerprint}
            self._folder.write_json(PLAN, {**values, "units": units})
            return plan
        if found.get("version") != VERSION:
            raise JobError(
                f"{self._folder.path(PLAN)} has version {found.get('version')}, not {VERSION}; go "
                "on with the Kerolox that wrote it"
            )
        if found["options"] != fingerprint:
            raise self._options.error(
                "state",
                f"{self._folder.uri} is of a replay with other options; give the same, or name an "
                "empty folder",
            )
        return Plan(str(found["id"]), tuple(Unit.of_json(each) for each in found["units"]))

    def done(self) -> SentRows:
        """What earlier runs have sent."""
        found = self._folder.read_json(DONE) if self._folder else None
        return SentRows(**cast("dict[str, Any]", found)) if found else SentRows()

    @property
    def decisions(self) -> str:
        """The folder of the sink's decisions; empty where nothing is kept."""
        if self._folder is None:
            return ""
        is_uri = "://" in self._folder.uri or self._folder.uri.startswith("file:")
        return self._folder.path(DECISIONS) if is_uri else self._folder.inner(DECISIONS)

    def keep(self, unit: int, counts: Counts) -> None:
        """Write what a unit holds, before it is decided."""
        if self._folder is not None:
            self._folder.write_json(SENT, {"unit": unit, **dataclasses.asdict(counts)})

    def kept(self, unit: int) -> Counts:
        """What was written of a unit that is decided; JobError: nothing of it."""
        found = self._folder.read_json(SENT) if self._folder else None
        if self._folder is None or found is None or found.pop("unit", None) != unit:
            raise JobError(
                f"unit {unit} is decided in {self.decisions}, and {SENT} beside it does not report "
                "of it; restore the folder of option --state as it was"
            )
        return Counts(**cast("dict[str, Any]", found))

    def mark(self, done: SentRows) -> None:
        """Write how far it is."""
        if self._folder is not None:
            self._folder.write_json(DONE, dataclasses.asdict(done))
