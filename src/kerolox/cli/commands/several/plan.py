"""Several brokers of one machine: their names, ports and folders. Nothing is started here.

A route has one master for each broker name, so each broker has a name of its own. The first one has
what a broker alone would have, name, ports and store: a machine that gets more brokers keeps what
it has. The others have its name with a number, ports further on and folders below its store.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kerolox.addresses import join_address, split_address
from kerolox.config import refuse_one_time_file
from kerolox.errors import ConfigError

if TYPE_CHECKING:
    from kerolox.broker.config import BrokerConfig

PORT_STEP = 10
"""From the port of one broker to that of the next, as in RocketMQ's own examples: beside
``listenPort`` a broker has the VIP port, two below, and the port of its slaves, one above."""

GRPC_PORT_STEP = 1
"""The same of ``grpcServerPort``, which has no other ports beside it."""

PORT_MAX = 65535

METRICS_HOST = "127.0.0.1"
"""Where a broker's own metrics are read from, by the one that serves those of all."""


@dataclass(frozen=True, slots=True)
class BrokerPlan:
    """One of the brokers.

    Attributes:
        name: ``brokerName``.
        config: its settings, checked.
        overrides: field name → value, stronger than the settings file.
    """

    name: str
    config: BrokerConfig
    overrides: Mapping[str, object]


def plan_brokers(config: BrokerConfig, count: int) -> list[BrokerPlan]:
    """What each of ``count`` brokers has. ``config``: of the first one if it were alone.

    Raises:
        ConfigError: a setting can't be that of several brokers, or a port would be too large.
    """
    _check_shared(config)
    given = dict(config.source.overrides) if config.source else {}
    given.pop(config.file_field, None)
    plans = []
    for number in range(count):
        own = _own(config, number)
        try:
            planned = config.overridden(**own)
        except ConfigError as error:
            raise ConfigError(f"broker {number + 1} of {count}: {error}") from None
        overrides = {name: value for name, value in {**given, **own}.items() if value is not None}
        plans.append(BrokerPlan(planned.broker_name, planned, overrides))
    return plans


def _own(config: BrokerConfig, number: int) -> dict[str, object]:
    """Field name → value of what a broker has for itself. ConfigError: a port is too large."""
    own: dict[str, object] = {}
    if number:
        own["broker_name"] = f"{config.broker_name}-{number}"
        own["store_path_root_dir"] = config.store_path_root_dir / f"broker-{number}"
    own["listen_port"] = _port(config.listen_port, number * PORT_STEP, "listenPort")
    own["grpc_server_port"] = _port(
        config.grpc_server_port, number * GRPC_PORT_STEP, "grpcServerPort"
    )
    for name, key, step in (
        ("advertised_address", "advertisedAddress", PORT_STEP),
        ("grpc_advertised_address", "grpcAdvertisedAddress", GRPC_PORT_STEP),
    ):
        if address := getattr(config, name):
            host, port = split_address(address)
            own[name] = join_address(host, _port(port, number * step, key))
    if config.serves_metrics:
        own["metrics_prom_exporter_host"], own["metrics_prom_exporter_port"] = METRICS_HOST, 0
    return own


def _port(first: int, further: int, key: str) -> int:
    """0, which is any free one or none, stays."""
    if first and first + further > PORT_MAX:
        raise ConfigError(
            f"{key}={first}: the last broker's would be {first + further}; the most is {PORT_MAX}"
        )
    return first + further if first else 0


def _check_shared(config: BrokerConfig) -> None:
    for key, is_given in (
        ("storePathCommitLog", bool(config.store_path_commit_log)),
        ("readOnlyCommitLogStorePaths", bool(config.read_only_commit_log_store_paths)),
        ("haListenPort", bool(config.ha_listen_port)),
    ):
        if is_given:
            raise ConfigError(
                f"{key} is given, and several brokers can't share it; leave it out, or start each "
                "broker by itself with a file of its own (kerolox broker -c)"
            )
    if config.broker_role == "SLAVE":
        raise ConfigError("brokerRole=SLAVE: several brokers of one command are masters")
    if config.source is not None and config.source.path is not None:
        # Each broker reads it, and again when it is started again.
        refuse_one_time_file(config.source.path)
