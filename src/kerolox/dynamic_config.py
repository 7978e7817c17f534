"""The settings of a role that runs: changed by requests, read again from their file, and shown.

What a request (UPDATE_BROKER_CONFIG, UPDATE_NAMESRV_CONFIG) may change, and what takes effect at
once, stands with each setting (:mod:`kerolox.role_settings`). A change is checked as a start would
check it, as a whole, then written to the settings file, then in force. What waits for the next
start is shown under ``pendingRestart.<key>``. The work and memory of a request are bounded.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Generic, TypeVar

from kerolox.config import (
    change_settings_file,
    refuse_unknown,
    setting_keys,
    setting_rules,
    shown_setting,
)
from kerolox.errors import BrokerBusyError, ConfigError, NoPermissionError
from kerolox.observable import Observable
from kerolox.properties import parse_properties
from kerolox.role_settings import RoleSettings
from kerolox.tasks import end_tasks
from kerolox.text import printable

CHANGE_BYTES_MAX = 16 * 1024
"""Bytes of a request that changes settings; all settings as text have some 6,000."""

CHANGE_LINES_MAX = 1000
WAITING_MAX = 16
"""Changes that wait for the file; further ones are refused as busy."""

PENDING_PREFIX = "pendingRestart."
"""In front of the key of a setting whose value waits for the next start, where settings are
shown. The value in force stands under the plain key."""

FIXED_KEYS = frozenset(("rocketmqHome",))
"""Keys without effect that RocketMQ lets no request change."""

HEADER = """\
# Settings that requests have changed. A start without -c reads this file; one with -c FILE
# reads FILE alone, and requests then write to that.
"""

OnChange = Callable[[str, Mapping[str, str], Mapping[str, str]], object]
"""Hears of changed settings."""

_log = logging.getLogger(__name__)
_Settings = TypeVar("_Settings", bound=RoleSettings)


class DynamicConfig(Generic[_Settings]):
    """Those in force, which all parts of the role share, and those that wait for the next start."""

    def __init__(
        self,
        settings: Observable[_Settings],
        now_ms: Callable[[], int],
        overrides: Callable[[], Mapping[str, object]] = dict,
    ) -> None:
        """``settings`` is given other values. ``overrides``: field name → value of what something
        else than settings decides now; it is shown in their place."""
        self._settings = settings
        self._overrides = overrides
        self._now_ms = now_ms
        self._pending: dict[str, str] = {}
        """Field name → text of the next start, as it is shown."""
        self._writing = asyncio.Lock()
        self._tasks: set[asyncio.Task[str]] = set()
        self.version = {"counter": 0, "timestamp": now_ms()}
        """``DataVersion`` of the settings."""

    def shown(self) -> dict[str, str]:
        """Key → text of all settings as they are in force, then those that wait for a restart."""
        config = self._config
        shown = config.overridden(**self._overrides()).as_properties()
        keys = {name: key for key, name in setting_keys(type(config)).items()}
        shown[keys[config.file_field]] = str(config.settings_file)
        shown.update((PENDING_PREFIX + keys[name], text) for name, text in self._pending.items())
        return shown

    # -- requests -----------------------------------------------------------------------------
    async def change(self, body: bytes, asker: str, on_change: OnChange | None = None) -> str:
        """Take over other values, given as ``key=value`` lines, and write them to the file.

        Args:
            body: the lines, UTF-8.
            asker: who wants it, for the log and errors.
            on_change: called when it is done, with the keys, and key → text before and after. What
                waited for the next start before counts as what was there.

        Returns:
            What is not in force now, and why; empty when all is.

        Raises:
            NoPermissionError: one may not be changed by a request; nothing was changed.
            BrokerBusyError: too many changes wait already.
            ConfigError: a key is unknown, a value does not fit, or the next start would not take
                the file; nothing was changed.
            OSError: the file can't be written; what is live is in force nevertheless.
        """
        given = _parsed(body, asker)
        if not given:
            return ""
        known = {*setting_keys(type(self._config)), *self._config.unused_keys}
        refuse_unknown(given, known, asker)
        self._check_allowed(given)
        without_effect = given.keys() & self._config.unused_keys.keys()
        values = {key: text.strip() for key, text in given.items() if key not in without_effect}
        if not values:
            raise ConfigError(f"nothing changed: {self._reasons(without_effect)}")
        self._config.changed(values, asker)
        if len(self._tasks) >= WAITING_MAX:
            raise BrokerBusyError(f"{WAITING_MAX} changes of settings wait already; try again")
        # A task of its own: a request that is cancelled leaves nothing half done.
        task = asyncio.get_running_loop().create_task(self._change(values, asker, on_change))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        remark = await asyncio.shield(task)
        if without_effect:
            remark = "; ".join(filter(None, (remark, self._reasons(without_effect))))
        return remark

    @property
    def _config(self) -> _Settings:
        return self._settings.current

    async def stop(self) -> None:
        """End changes in flight."""
        await end_tasks(*self._tasks)

    def _check_allowed(self, keys: Iterable[str]) -> None:
        config = self._config
        names = setting_keys(type(config))
        black_list = FIXED_KEYS | {key.strip() for key in config.config_black_list.split(";")}
        for key in keys:
            if key in black_list:
                raise NoPermissionError(
                    f"Can not update config in black list. {printable(key)} is on configBlackList "
                    f"of {config.settings_file}; {_EDIT}"
                )
            if key in names and not config.is_wire(names[key]):
                permission = _wire_if(type(config), names[key])
                hint = f"{permission}=true allows it; or " if permission else ""
                raise NoPermissionError(
                    f"Can not update config in black list. No request changes {key}: {hint}{_EDIT}"
                )

    async def _change(
        self, values: Mapping[str, str], asker: str, on_change: OnChange | None
    ) -> str:
        failure: OSError | None = None
        async with self._writing:
            config = self._config
            wanted = config.changed(values, asker)
            try:
                await asyncio.to_thread(self._write, values)
            except OSError as error:
                failure = error
            names = setting_keys(type(config))
            old = self._texts(config, {key: names[key] for key in values})
            later = {key: names[key] for key in values if not config.is_live(names[key])}
            live = frozenset(names[key] for key in values) - frozenset(later.values())
            going_on = self._use(config.with_values_of(wanted, live))
            if failure is None:
                self._set_pending(wanted, later.values())
            self._new_version()
        if on_change is not None:
            kept = [key for key in values if failure is None or key not in later]
            new = self._texts(wanted, {key: names[key] for key in kept})
            on_change(", ".join(kept), {key: old[key] for key in kept}, new)
        for key, text in values.items():
            when = "at the next start" if key in later else "now"
            _log.info("%s set %s=%s, in force %s", asker, key, printable(text), when)
        await self._finish(config, going_on)
        if failure is not None:
            raise _not_kept(failure, config.settings_file, [k for k in values if k not in later])
        return self._not_in_force({key: names[key] for key in values})

    def _texts(self, config: RoleSettings, names: Mapping[str, str]) -> dict[str, str]:
        """Key → text of settings; of those in force, what waits for the next start instead."""
        pending = self._pending if config is self._config else {}
        return {
            key: pending.get(name) or shown_setting(config, name) for key, name in names.items()
        }

    def _not_in_force(self, names: Mapping[str, str]) -> str:
        """What a success does not say: key → field name of what was changed."""
        config = self._config
        overridden = [key for key, name in names.items() if config.is_overridden(name)]
        waiting = [
            key for key, name in names.items() if name in self._pending and key not in overridden
        ]
        texts = []
        if waiting:
            file = config.settings_file
            texts.append(f"written to {file}, in force at the next start: {_list(waiting)}")
        if overridden:
            texts.append(
                f"an option that the server was started with is stronger than the file, and counts "
                f"at the next start: {_list(overridden)}"
            )
        return "; ".join(texts)

    def _write(self, values: Mapping[str, str]) -> None:
        config = self._config
        path = config.settings_file
        change_settings_file(
            path, values, header=HEADER, check=lambda all_: config.check_file(all_, str(path))
        )

    def _set_pending(self, wanted: RoleSettings, names: Iterable[str]) -> None:
        for name in names:
            value = getattr(wanted, name)
            self._pending.pop(name, None)
            if value != getattr(self._config, name):
                self._pending[name] = shown_setting(wanted, name)

    def _reasons(self, keys: Iterable[str]) -> str:
        reasons = self._config.unused_keys
        first = sorted(keys)[:3]
        return "; ".join(f"{key} has no effect here ({reasons[key]})" for key in first)

    def _new_version(self) -> None:
        counter = int(self.version["counter"]) + 1
        self.version = {"counter": counter, "timestamp": self._now_ms()}

    # -- the file -----------------------------------------------------------------------------
    async def reload(self) -> None:
        """Read the settings file again, as a start in the same way would. What is live is in force
        then; what waits for a restart is named in the log. A file with a mistake changes nothing
        and is one error in the log. Raises nothing."""
        source = self._config.source
        if source is None:
            _log.info("no settings file was loaded; nothing to reload")
            return
        async with self._writing:
            config = self._config
            try:
                wanted = await asyncio.to_thread(config.reloaded)
            except ConfigError as error:
                _log.error("settings stay as they are: %s", error)
                return
            keys = {name: key for key, name in setting_keys(type(config)).items()}
            overrides = self._overrides()
            fields = [each.name for each in dataclasses.fields(config) if each.name in keys]
            others = [
                name
                for name in fields
                if getattr(wanted, name) != getattr(config, name) and name not in overrides
            ]
            live = frozenset(name for name in others if config.is_live(name))
            going_on = self._use(config.with_values_of(wanted, live))
            self._pending.clear()
            self._set_pending(wanted, [name for name in others if name not in live])
            if live:
                self._new_version()
        path = source.path or config.settings_file
        now = [f"{keys[name]}={shown_setting(self._config, name)}" for name in sorted(live)]
        _log.info(
            "settings of %s read again; in force now: %s", path, _list(now) or "all as before"
        )
        if self._pending:
            waiting = [f"{keys[name]}={text}" for name, text in self._pending.items()]
            _log.warning("settings that wait for a restart: %s", _list(waiting))
        await self._finish(config, going_on)

    def _use(self, new: _Settings) -> list[Awaitable[None]]:
        """Have other values in force everywhere; what is to be awaited."""
        return [] if new == self._config else self._settings.replace(new)

    async def _finish(self, before: _Settings, going_on: Iterable[Awaitable[None]]) -> None:
        """After a change was logged, at the level of before."""
        if self._config.log_level != before.log_level:
            self._config.use_log_level()
        for each in going_on:
            await each


_EDIT = "edit the settings file and restart"


def _parsed(body: bytes, asker: str) -> dict[str, str]:
    if len(body) > CHANGE_BYTES_MAX:
        raise ConfigError(f"{asker}: {len(body)} bytes of settings; at most {CHANGE_BYTES_MAX}")
    lines = body.count(b"\n") + body.count(b"\r") + 1
    if lines > CHANGE_LINES_MAX:
        raise ConfigError(f"{asker}: {lines} lines of settings; at most {CHANGE_LINES_MAX}")
    try:
        text = body.decode()
    except UnicodeDecodeError:
        raise ConfigError(f"{asker}: the settings are not UTF-8") from None
    return parse_properties(text, where=asker)


def _wire_if(settings_type: type[RoleSettings], name: str) -> str | None:
    """The key of the setting that would allow a change."""
    permission = setting_rules(settings_type)[name].get("wire_if")
    keys = {field: key for key, field in setting_keys(settings_type).items()}
    return keys[permission] if permission else None


def _not_kept(error: OSError, path: object, live: Iterable[str]) -> OSError:
    in_force = f"; in force until the next start: {_list(live)}" if live else "; nothing changed"
    return OSError(f"{path} can't be written: {error.strerror or error}{in_force}")


def _list(texts: Iterable[str]) -> str:
    return printable(", ".join(texts), characters_max=1024)
