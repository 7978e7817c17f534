"""Checks a ``broker.conf``: keys that nobody knows or that do nothing, values that don't fit, and
values that a running broker has not in force."""

from __future__ import annotations

import typing
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, Self

from kerolox.addresses import is_loopback, is_wildcard, split_address
from kerolox.broker.config import BrokerConfig
from kerolox.clock import now_ms
from kerolox.config import (
    convert_setting,
    nearest,
    read_key_lines,
    read_properties,
    setting_keys,
    setting_rules,
    setting_text,
)
from kerolox.doctor.checks.settings import hurtful_settings
from kerolox.doctor.findings import Finding, worst_first
from kerolox.errors import ConfigError
from kerolox.role_settings import RoleSettings
from kerolox.text import split_list


class Lines(NamedTuple):
    """Where the keys of a file stand."""

    path: str
    numbers: Mapping[str, tuple[int, ...]]

    @classmethod
    def of_file(cls, path: Path) -> Self:
        """Those of a settings file; ConfigError: it can't be read."""
        return cls(str(path), read_key_lines(path))

    def of(self, key: str) -> str:
        """The file, the line that counts, and the key."""
        numbers = self.numbers.get(key)
        place = f", line {numbers[-1]}" if numbers else ""
        return f"{self.path}{place}: {key}"


def check_settings(path: Path, running: Iterable[Mapping[str, str]] = ()) -> list[Finding]:
    """What is wrong with a file; nothing where it is well. ``running``: the settings of brokers
    that run, by RocketMQ's names. The file is compared with those of the broker that has its
    brokerName and brokerId.
    """
    where = str(path)
    try:
        values, lines = read_properties(path), Lines.of_file(path)
    except ConfigError as error:
        return [Finding("setting-wrong", where, str(error), "correct the file")]
    findings = [*check_keys(lines, values, BrokerConfig), *_contradictions(lines, values)]
    findings += hurtful_settings(where, values, now_ms())
    findings += _addresses(lines, values)
    place = values.get("brokerName", "").strip(), values.get("brokerId", "0").strip()
    for each in running:
        if (each.get("brokerName"), each.get("brokerId")) == place:
            findings += _in_force(lines, values, each)
    return worst_first(findings)


def check_keys(
    lines: Lines, values: Mapping[str, str], settings: type[RoleSettings]
) -> Iterator[Finding]:
    """Keys that nobody knows, that have no effect or stand twice, and values that don't fit: each
    by itself, and then all that are right together. ``settings``: of the role that reads the file.
    """
    keys = setting_keys(settings)
    hints, rules = typing.get_type_hints(settings), setting_rules(settings)
    right: dict[str, object] = {}
    for key, text in values.items():
        where = lines.of(key)
        if len(lines.numbers.get(key, ())) > 1:
            yield Finding(
                "setting-twice",
                where,
                "it stands in lines "
                + ", ".join(map(str, lines.numbers[key]))
                + ", and the last one counts",
                "take the other lines out",
            )
        name = keys.get(key)
        if name is None:
            yield _without_field(key, where, settings, keys)
            continue
        try:
            right[name] = convert_setting(text, hints[name], rules[name], where=key)
        except ConfigError as error:
            yield Finding("setting-wrong", where, str(error), "correct the value; see settings.md")
    try:
        settings(**right)  # type: ignore[arg-type]
    except ConfigError as error:
        yield Finding("setting-wrong", lines.path, str(error), "correct the value; see settings.md")


def _without_field(
    key: str, where: str, settings: type[RoleSettings], known: Iterable[str]
) -> Finding:
    reason = settings.unused_keys.get(key)
    if reason is not None:
        text = f"it has no effect: {reason}"
        return Finding("setting-without-effect", where, text, "take the line out")
    best = nearest(key, known)
    return Finding(
        "setting-unknown",
        where,
        "no setting has this name: RocketMQ ignores it, Kerolox does not start",
        f"write {best}, if that is what is meant" if best else "take the line out",
    )


def _contradictions(lines: Lines, values: Mapping[str, str]) -> Iterator[Finding]:
    """Settings that are right by themselves, of which one makes another useless."""

    def is_true(key: str) -> bool:
        return values.get(key, "").strip() == "true"

    is_synchronous = values.get("flushDiskType", "").strip() == "SYNC_FLUSH"
    if is_true("transientStorePoolEnable") and is_synchronous:
        yield Finding(
            "settings-contradict",
            lines.of("transientStorePoolEnable"),
            "the pool is not used with flushDiskType=SYNC_FLUSH",
            "take one of both out",
        )
    if is_true("transientStorePoolEnable") and not is_synchronous and "dedupMaxKeys" in values:
        yield Finding(
            "settings-contradict",
            lines.of("dedupMaxKeys"),
            "with transientStorePoolEnable=true no topic has a window of keys: what comes again is"
            " stored again, though the topic has dedup.window.ms",
            "take transientStorePoolEnable out",
        )
    if is_true("enableCalcFilterBitMap") and not is_true("enableConsumeQueueExt"):
        yield Finding(
            "settings-contradict",
            lines.of("enableCalcFilterBitMap"),
            "bit maps are kept in the extension of queues, and enableConsumeQueueExt is not true",
            "set enableConsumeQueueExt=true, or take the line out",
        )
    port, ha_port = (values.get(key, "").strip() for key in ("listenPort", "haListenPort"))
    ports = {port: "listenPort"}
    if port.isdecimal() and values.get("vipPortEnable", "").strip() != "false":
        ports[str(int(port) - 2)] = "the VIP port, listenPort - 2"
    if ha_port and ha_port in ports:
        yield Finding(
            "settings-contradict",
            lines.of("haListenPort"),
            f"{ha_port} is {ports[ha_port]}, too",
            "choose another port",
        )


def _addresses(lines: Lines, values: Mapping[str, str]) -> Iterator[Finding]:
    servers = split_list(values.get("namesrvAddr", ""))
    if not servers:
        yield Finding(
            "no-name-server",
            lines.path,
            "namesrvAddr is not set: without -n or $NAMESRV_ADDR no client finds the broker",
            "set namesrvAddr to all name servers, joined by ';'",
        )
    host = values.get("brokerIP1", "").strip()
    if is_wildcard(host):
        yield Finding(
            "setting-wrong",
            lines.of("brokerIP1"),
            f"{host} is no address that a client could connect to",
            "set it to the address that clients reach; listenHost is what the broker listens on",
        )
    elif is_loopback(host) and not all(_is_near(each) for each in servers):
        yield Finding(
            "advertised-loopback",
            lines.of("brokerIP1"),
            f"clients of name servers on other machines would be led to {host}",
            "set it to the address that clients reach",
        )


def _is_near(address: str) -> bool:
    try:
        return is_loopback(split_address(address)[0])
    except ValueError:
        return False


def _in_force(
    lines: Lines, values: Mapping[str, str], running: Mapping[str, str]
) -> Iterator[Finding]:
    keys = setting_keys(BrokerConfig)
    hints, rules = typing.get_type_hints(BrokerConfig), setting_rules(BrokerConfig)
    for key, text in values.items():
        name, live = keys.get(key), running.get(key)
        if name is None or live is None or rules[name].get("secret"):
            continue
        try:
            wanted = setting_text(convert_setting(text, hints[name], rules[name], where=key))
        except ConfigError:
            continue  # told already
        if wanted != live:
            yield Finding(
                "setting-not-in-force",
                lines.of(key),
                f"the file says {wanted or 'nothing'}, and the running broker has"
                f" {live or 'nothing'}",
                "restart the broker, or have it read the file again (SIGHUP)",
            )
