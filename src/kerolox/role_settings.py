"""What the settings of a broker and of a name server have in common.

A setting says in its field's metadata what may become of it while the role runs:

- ``wire``: a request (UPDATE_BROKER_CONFIG, UPDATE_NAMESRV_CONFIG) may change it. This is the allow
  list, and its only home: a field without it is changed in the file alone. What names a file, a
  folder, an address or a port, and what the files of a store depend on, never has it.
- ``wire_if``: the same while the setting of that field name is true.
- ``live``: it takes effect at once, by a request or a reload; others wait for the next start.

:data:`LIVE` and :data:`LATER` are the two kinds of metadata that most allowed settings have.

Where settings come from, the stronger first: options of the command line (``overrides``), the
settings file, for TLS ``tls.config.file``, the defaults. The file is the one given with ``-c``.
Without one it is the file that requests have written (``settings_file``), of which only settings of
the allow list are read.

RocketMQ takes the settings of TLS (:class:`TlsServerSettings`) as system properties
(``-Dtls.server.mode=...``) and from ``tls.config.file``, whose lines win there.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Self

from kerolox.config import (
    convert_settings,
    load_settings,
    read_properties,
    refuse_one_time_file,
    refuse_unknown,
    setting_keys,
    setting_rules,
    shown_setting,
)
from kerolox.errors import ConfigError
from kerolox.settings_class import settings_dataclass
from kerolox.text import printable

LIVE: dict[str, object] = {"wire": True, "live": True}
"""Metadata of a setting that a request may change, at once."""

LATER: dict[str, object] = {"wire": True}
"""Metadata of a setting that a request may change for the next start."""

CONFIG_FILE = "/etc/rocketmq/tls.properties"
"""Where RocketMQ looks for TLS settings unless it is told otherwise (``tls.config.file``)."""

DISABLED, PERMISSIVE, ENFORCING = "disabled", "permissive", "enforcing"
"""``TlsMode``: no TLS, TLS and plain text on one port, TLS only."""

EXPORTERS = ("DISABLE", "PROM", "OTLP_GRPC", "OTLP_HTTP")
"""What becomes of metrics (``MetricsExporterType``)."""

LOG_LEVELS = ("debug", "info", "warning", "error")

TLS_CLIENT_KEYS = frozenset(
    (
        "tls.enable",
        "tls.client.keyPath",
        "tls.client.keyPassword",
        "tls.client.certPath",
        "tls.client.authServer",
        "tls.client.trustCertPath",
        "tls.client.checkHostName",
    )
)
"""Keys of ``tls.properties`` that servers leave to those who connect: RocketMQ keeps them in the
same file."""

_log = logging.getLogger(__name__)


@settings_dataclass(frozen=True, slots=True, kw_only=True)
class TlsServerSettings:
    """How a server speaks TLS. Files are PEM; relative paths begin where the server was started."""

    tls_server_mode: str = field(
        default=PERMISSIVE,
        metadata={"key": "tls.server.mode", "choices": (DISABLED, PERMISSIVE, ENFORCING)},
    )
    """permissive: a connection speaks TLS or not, as its first byte says; enforcing: TLS only."""
    tls_config_file: str = field(default=CONFIG_FILE, metadata={"key": "tls.config.file"})
    """A file of these settings; the default one may be missing. Empty: none is read."""
    tls_test_mode_enable: bool | None = field(
        default=None, metadata={"key": "tls.test.mode.enable"}
    )
    """The certificate is made by the server for itself. Unset: where no certificate is given; in
    RocketMQ always, unless it is false."""
    tls_server_need_client_auth: str = field(
        default="none",
        metadata={
            "key": "tls.server.need.client.auth",
            "choices": ("none", "optional", "require", "NONE", "OPTIONAL", "REQUIRE"),
        },
    )
    """Whether clients are asked for a certificate."""
    tls_server_key_path: str = field(default="", metadata={"key": "tls.server.keyPath"})
    """The private key; empty: it is in the certificate's file."""
    tls_server_key_password: str = field(
        default="", repr=False, metadata={"key": "tls.server.keyPassword", "secret": True}
    )
    tls_server_cert_path: str = field(default="", metadata={"key": "tls.server.certPath"})
    """The certificate, followed by those between it and its authority."""
    tls_server_auth_client: bool = field(default=False, metadata={"key": "tls.server.authClient"})
    """Check clients' certificates. RocketMQ takes any where it is false, so then none is asked
    for."""
    tls_server_trust_cert_path: str = field(
        default="", metadata={"key": "tls.server.trustCertPath"}
    )
    """Certificates of the authorities that sign clients' certificates."""
    tls_server_handshakes_max: int = field(
        default=1024, metadata={"key": "tls.server.handshakesMax", "min": 1, "max": 65536}
    )
    """Handshakes under way at the same time; further ones wait for their turn. A key of ours."""
    tls_server_handshake_timeout_millis: int = field(
        default=10_000,
        metadata={"key": "tls.server.handshakeTimeoutMillis", "min": 1, "max": 600_000},
    )
    """From the first byte of a handshake to its end. A key of ours."""

    def tls_overrides(self) -> dict[str, object]:
        """Field name → value of these, for another role that is to speak TLS as this one does."""
        return {name: getattr(self, name) for name in TlsServerSettings.__dataclass_fields__}

    @property
    def is_test_mode(self) -> bool:
        """Whether the certificate is one that the server makes."""
        if self.tls_test_mode_enable is None:
            return not (self.tls_server_cert_path or self.tls_server_key_path)
        return self.tls_test_mode_enable

    @property
    def is_client_asked(self) -> bool:
        """Whether clients may show a certificate, which is checked."""
        wish = self.tls_server_need_client_auth.lower()
        return wish != "none" and self.tls_server_auth_client and not self.is_test_mode

    @property
    def is_client_certificate_required(self) -> bool:
        """Whether they must."""
        return self.is_client_asked and self.tls_server_need_client_auth.lower() == "require"


@dataclass(frozen=True, slots=True)
class Source:
    """Where settings were loaded from, so that it can be done again."""

    path: Path | None
    """The file that was given; None: what requests have written is read, if it is there."""
    overrides: Mapping[str, object]
    """Field name → value, stronger than the file."""
    keys: tuple[str, ...]
    """The keys that the file gave."""


@settings_dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSettings(TlsServerSettings):
    """Metrics for Prometheus, and health, over HTTP: off until they are asked for. The keys are
    those of RocketMQ 5."""

    metrics_exporter_type: str = field(
        default=EXPORTERS[0],
        metadata={"choices": (*EXPORTERS, *(name.lower() for name in EXPORTERS))},
    )
    """PROM: serve ``/metrics``, ``/health/live`` and ``/health/ready``. OTLP_GRPC, OTLP_HTTP: send
    metrics to an OpenTelemetry collector; OTLP_HTTP is ours."""
    metrics_prom_exporter_host: str = "127.0.0.1"
    """Addresses to listen on, joined by ``;``. Whoever reaches them sees all names of topics and
    groups: there are no accounts. RocketMQ listens on all addresses."""
    metrics_prom_exporter_port: int = field(default=5557, metadata={"min": 0, "max": 65535})
    """0: any free port."""
    metrics_otel_cardinality_limit: int = field(
        default=50_000, metadata={"min": 1, "max": 1_000_000}
    )
    """Most series of one family; what would be one more is counted and left out."""
    metrics_grpc_exporter_target: str = field(default="", metadata={"bytes": 1024})
    """Where the collector is, ``http://host:4317``; https unless it says http."""
    metrics_grpc_exporter_header: str = field(
        default="", repr=False, metadata={"bytes": 4096, "secret": True}
    )
    """Headers for it: ``name:value``, joined by ``,``."""
    metric_grpc_exporter_time_out_in_mills: int = field(
        default=3_000, metadata={"min": 1, "max": 4_000}
    )
    """How long it may take; a stop waits for that."""
    metric_grpc_exporter_interval_in_mills: int = field(
        default=60_000, metadata={"min": 100, "max": 86_400_000}
    )
    """From one time that metrics are sent to the next."""

    @property
    def serves_metrics(self) -> bool:
        """Whether metrics are served over HTTP."""
        return self.metrics_exporter_type.upper() == "PROM"

    @property
    def is_exported_by_http(self) -> bool:
        """Whether metrics go to a collector over HTTP."""
        return self.metrics_exporter_type.upper() == "OTLP_HTTP"

    @property
    def measures(self) -> bool:
        """Whether metrics are asked for."""
        return self.metrics_exporter_type.upper() != EXPORTERS[0]


@settings_dataclass(frozen=True, slots=True, kw_only=True)
class RoleSettings(MetricsSettings):
    """The base of a role's settings. A subclass names its keys without effect and its file."""

    unused_keys: ClassVar[Mapping[str, str]] = {}
    """Key of RocketMQ → why it has no effect here."""
    keys_of_others: ClassVar[frozenset[str]] = frozenset()
    """Keys of another role that may run in this one's process, with settings in the same file."""
    file_field: ClassVar[str] = ""
    """The field that holds the path of the settings file."""

    log_level: str = field(
        default="",
        metadata=LIVE | {"choices": ("", *LOG_LEVELS, *(level.upper() for level in LOG_LEVELS))},
    )
    """What is logged from the start, or this change, on; empty: what ``--log-level`` says. A key of
    ours."""
    config_black_list: str = field(default="", metadata={"bytes": 4096})
    """Keys, joined by ``;``, that no request may change, even if the allow list has them."""
    source: Source | None = field(default=None, compare=False, repr=False, metadata={"key": None})
    """None: made by a program, so there is nothing to reload."""

    @property
    def settings_file(self) -> Path:
        """Where requests write."""
        raise NotImplementedError

    @property
    def kept_file(self) -> Path:
        """The same when no file is given; a start without a file reads it."""
        return self.settings_file

    # -- loading ------------------------------------------------------------------------------
    @classmethod
    def load(cls, path: Path | None = None, **overrides: object) -> Self:
        """Settings of a file (None: the defaults), and ``overrides`` by field name. ConfigError:
        the file can't be read, a key is unknown, or a value does not fit; the text names file and
        key.
        """
        if path is None:
            return cls._made({}, "the settings", overrides)
        path = path.absolute()
        overrides[cls.file_field] = path
        values = read_properties(path)
        return cls._from(path, values, overrides, str(path))

    @classmethod
    def load_for_start(cls, path: Path | None = None, **overrides: object) -> Self:
        """Settings as the command line starts with them, by :meth:`load`: of the file given, or
        else those that requests changed before (see :attr:`settings_file`).
        """
        if path is not None:
            config = cls.load(path, **overrides)
            kept = config.kept_file
            # Not Path.exists: a folder that is closed to us is for the start to complain of.
            if os.path.exists(kept) and kept.resolve() != path.resolve():
                _log.warning("%s is not read, since %s is given", kept, path)
            return config
        plain = cls.load(None, **overrides)
        kept = plain.kept_file
        if not os.path.exists(kept):
            return cls._from(None, {}, overrides, str(kept))
        values, left_out = plain._kept(read_properties(kept))
        if left_out:
            _log.warning(
                "%s: not read: %s; this file has what requests may change, give the rest with -c",
                kept,
                _list(left_out),
            )
        return cls._from(None, values, overrides, str(kept))

    @classmethod
    def _from(
        cls,
        path: Path | None,
        values: Mapping[str, str],
        overrides: Mapping[str, object],
        where: str,
    ) -> Self:
        source = Source(path, dict(overrides), tuple(values))
        return cls._made(values, where, {**overrides, "source": source})

    @classmethod
    def _made(
        cls,
        values: Mapping[str, str],
        where: str,
        overrides: Mapping[str, object],
        *,
        warn: bool = True,
    ) -> Self:
        values = {key: text for key, text in values.items() if key not in cls.keys_of_others}
        beneath = _tls_values(cls, values, overrides)
        config = load_settings(
            cls,
            {**beneath, **values},
            where=where,
            known_unused=cls.unused_keys,
            overrides=overrides,
            warn=warn,
        )
        if warn:
            config._warn_of(values, where)
        return config

    def _warn_of(self, values: Mapping[str, str], where: str) -> None:
        """Log what the file's values mean here besides keys without effect; nothing by default."""

    def _kept(self, values: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
        """What of a file that requests wrote is read at a start, and the keys that are not."""
        names = setting_keys(type(self))
        read = {k: text for k, text in values.items() if k in names and self.is_wire(names[k])}
        return read, [key for key in values if key not in read]

    def overridden(self, **overrides: object) -> Self:
        """These settings with some that are stronger than the file, at a reload too."""
        source = self.source and dataclasses.replace(
            self.source, overrides={**self.source.overrides, **overrides}
        )
        return dataclasses.replace(self, source=source, **overrides)  # type: ignore[arg-type]

    def is_overridden(self, name: str) -> bool:
        """Whether something stronger than the file gives this field at a start."""
        return self.source is not None and self.source.overrides.get(name) is not None

    def reloaded(self) -> Self:
        """The settings that a start in the same way has now. Only with a ``source``. ConfigError:
        the file can't be read, or read again, or has a mistake.
        """
        assert self.source is not None
        refuse_one_time_file(self.source.path or self.kept_file)
        return self.load_for_start(self.source.path, **self.source.overrides)

    def check_file(self, values: Mapping[str, str], where: str) -> None:
        """Raise a ConfigError unless the next start takes a settings file with these values."""
        overrides = dict(self.source.overrides) if self.source else {}
        if self.source is None or self.source.path is None:
            values, _ = self._kept(values)
        self._made(values, where, overrides, warn=False)

    # -- changing -----------------------------------------------------------------------------
    @classmethod
    def is_live(cls, name: str) -> bool:
        """Whether a field takes effect at once."""
        return bool(setting_rules(cls)[name].get("live", False))

    def is_wire(self, name: str) -> bool:
        """Whether a request may change a field."""
        rules = setting_rules(type(self))[name]
        permission = rules.get("wire_if")
        return bool(rules.get("wire", False) or (permission and getattr(self, permission)))

    def changed(self, values: Mapping[str, str], where: str) -> Self:
        """These settings with some keys changed, checked as at a start. ConfigError: a value does
        not fit, by itself or beside the others.
        """
        converted = convert_settings(type(self), values, where=where)
        return dataclasses.replace(self, **converted)  # type: ignore[arg-type]

    def with_values_of(self, other: Self, names: Iterable[str]) -> Self:
        """These settings with the values of others for some fields."""
        return dataclasses.replace(self, **{name: getattr(other, name) for name in names})

    def use_log_level(self) -> None:
        """Log what ``logLevel`` says from now on; roles of one process share it."""
        logging.getLogger("kerolox").setLevel(self.log_level.upper() or logging.NOTSET)

    def as_properties(self) -> dict[str, str]:
        """Key → text of all settings; secrets are :data:`kerolox.config.HIDDEN`."""
        return {key: shown_setting(self, name) for key, name in setting_keys(type(self)).items()}


def _list(keys: Iterable[str]) -> str:
    return printable(", ".join(keys))


def _tls_values(
    settings_type: type[TlsServerSettings],
    values: Mapping[str, str],
    overrides: Mapping[str, object],
) -> dict[str, str]:
    """What ``tls.config.file`` says for a role: key → text, checked. ``values``: of the role's own
    file, which may name the file, or switch TLS off; ``overrides``: field name → value; stronger.
    ConfigError: the file can't be read, is named and missing, or has a mistake.
    """
    keys = {key for key in setting_keys(settings_type) if key.startswith("tls.")}
    named = _given("tls_config_file", "tls.config.file", values, overrides)
    mode = _given("tls_server_mode", "tls.server.mode", values, overrides)
    if named == "" or (mode == DISABLED and not _may_dial(values, overrides)):
        return {}
    path = Path(named or CONFIG_FILE).expanduser()
    if named in (None, CONFIG_FILE) and not os.path.lexists(path):
        return {}
    try:
        read = read_properties(path)
    except ConfigError as error:
        raise ConfigError(f"tls.config.file: {error}") from error
    refuse_unknown(read, keys | TLS_CLIENT_KEYS, str(path))
    # An empty line says nothing, as in RocketMQ.
    given = {key: text for key, text in read.items() if key in keys and text.strip()}
    if "tls.config.file" in given:
        raise ConfigError(f"{path}: tls.config.file names another such file; name that one instead")
    convert_settings(settings_type, given, where=str(path))
    return given


def _may_dial(values: Mapping[str, str], overrides: Mapping[str, object]) -> bool:
    """Whether the role's own connections may speak TLS."""
    given = ("tls_enable", "tls.enable"), ("use_tls", "useTLS")
    return any(_given(*each, values, overrides) not in (None, "false") for each in given)


def _given(
    name: str, key: str, values: Mapping[str, str], overrides: Mapping[str, object]
) -> str | None:
    given = overrides.get(name)
    if given is None:
        given = values.get(key)
    return None if given is None else str(given).strip()
