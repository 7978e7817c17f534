"""``kerolox up``, ``namesrv``, ``broker``, ``controller``: servers in the foreground.

SIGTERM and SIGINT stop them, SIGHUP reloads, SIGUSR1 shows stacks (``cli/process/running.py``).
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kerolox.cli.grouping import Command
from kerolox.cli.process.logs import JSON, TEXT
from kerolox.config import read_properties, setting_keys
from kerolox.errors import ConfigError

if TYPE_CHECKING:
    from kerolox.broker.config import BrokerConfig
    from kerolox.controller.config import ControllerConfig
    from kerolox.namesrv.config import NamesrvConfig
    from kerolox.role_settings import RoleSettings

AUTO = "auto"

LOOPBACK = "127.0.0.1"
"""What `up` listens on unless it is told otherwise."""

_PORT = click.IntRange(0, 65535)
_PATH = click.Path(path_type=Path)


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """The options that all servers have."""

    hosts: tuple[str, ...]
    data: Path | None
    config_file: Path | None
    ready_file: Path | None
    log_file: Path | None
    log_format: str
    log_level: str | None
    """None: not given."""

    @property
    def listen_host(self) -> str | None:
        """``--host`` as setting ``listenHost`` has it."""
        return ";".join(self.hosts) if self.hosts else None


def _server_options(serve_with: Callable[..., None]) -> Callable[..., None]:
    """Have a command take :class:`ServerOptions`, in a process that is prepared as they say."""
    names = [each.name for each in dataclasses.fields(ServerOptions)]

    @functools.wraps(serve_with)
    def command(**given: object) -> None:
        shared = {name: given.pop(name) for name in names}
        options = ServerOptions(**shared)  # type: ignore[arg-type]
        from kerolox.cli.process.running import prepare_server

        # Until it serves, as in the import of the command line; see commands/starting.py.
        gc.disable()
        prepare_server(options.log_level or "info", options.log_file, options.log_format)
        serve_with(options, **given)

    for option in (
        click.option(
            "--log-level",
            type=click.Choice(["debug", "info", "warning", "error"]),
            help="What is logged (logLevel, info).",
        ),
        click.option(
            "--log-format",
            type=click.Choice([TEXT, JSON]),
            default=TEXT,
            show_default=True,
            help="How a log line is written, to a file or stderr.",
        ),
        click.option(
            "--log-file",
            type=_PATH,
            metavar="FILE",
            help="Where the log goes, instead of stderr; a file that was moved away is made again.",
        ),
        click.option(
            "--ready-file",
            type=_PATH,
            metavar="FILE",
            help="Written when the servers answer, with their addresses; removed when they stop.",
        ),
        click.option(
            "-c",
            "config_file",
            type=click.Path(path_type=Path, exists=True, dir_okay=False),
            metavar="FILE",
            help="Settings, as a .properties file of RocketMQ.",
        ),
        click.option("--data", type=_PATH, metavar="DIR", help="Where everything is stored."),
        click.option(
            "--host",
            "hosts",
            multiple=True,
            metavar="HOST",
            help="Address to listen on, '*' for all; may be repeated (listenHost). "
            "Default: 127.0.0.1 for up, else all.",
        ),
    ):
        command = option(command)
    return command


_grpc_option = click.option(
    "--grpc-port",
    type=_PORT,
    help="Port for clients of RocketMQ 5, by gRPC, 0: none (grpcServerPort). "
    "Default: 8081 for up where it is free, else none.",
)

_advertise_option = click.option(
    "--advertise",
    metavar="HOST:PORT",
    help="How clients reach the broker where it is another way, as behind NAT (advertisedAddress).",
)


class _Brokers(click.ParamType[int | None]):
    """How many brokers: a number, or None for ``auto``."""

    name = "N"

    def convert(
        self, value: str | int, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | None:
        """See click."""
        from kerolox.cli.commands.several.folders import BROKERS_MAX

        if value == AUTO:
            return None
        number: int = click.IntRange(1, BROKERS_MAX)(value, param, ctx)
        return number


@click.command(cls=Command)
@_advertise_option
@click.option(
    "--brokers",
    type=_Brokers(),
    default=1,
    metavar="N",
    help="Run N brokers, each a process of its own; auto: as many as this machine has processors "
    "for. Default: one, in this process.",
)
@click.option(
    "--plan",
    "plans_only",
    is_flag=True,
    help="Only say what the brokers would have, and share on this machine.",
)
@click.option("--port", type=_PORT, help="Port of the broker (listenPort, 10911).")
@click.option("--namesrv-port", type=_PORT, help="Port of the name server (listenPort, 9876).")
@click.option(
    "--namesrv-config",
    "namesrv_file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="Settings of the name server; -c has those of the broker.",
)
@_grpc_option
@_server_options
def up(
    options: ServerOptions,
    port: int | None,
    grpc_port: int | None,
    namesrv_port: int | None,
    namesrv_file: Path | None,
    advertise: str | None,
    brokers: int | None,
    plans_only: bool,
) -> None:
    """Run a name server and a broker in one process.

    With --brokers there are several: the second has the first one's name with -1, ports 10 further
    on (gRPC: 1) and its store in the folder broker-1 of the first one's. One that ends is started
    again.

    Only this machine reaches them, unless --host, or listenHost in the settings file, says
    otherwise. The name server listens on the broker's addresses, speaks TLS as it does and has its
    limits of connections, where its own file does not say otherwise.
    """
    from kerolox.broker.config import BrokerConfig
    from kerolox.cli.commands import starting
    from kerolox.cli.commands.several.folders import warn_of_left_out

    given = {} if options.config_file is None else read_properties(options.config_file)
    broker_config = BrokerConfig.load_for_start(
        options.config_file,
        listen_port=port,
        grpc_server_port=grpc_port,
        listen_host=options.listen_host or (None if given.get("listenHost") else LOOPBACK),
        advertised_address=advertise,
        store_path_root_dir=options.data,
        log_level=options.log_level,
    )
    wants_grpc = grpc_port is None and "grpcServerPort" not in given
    if plans_only:
        from kerolox.cli.commands.several.up import show_plan

        show_plan(broker_config, brokers, wants_grpc=wants_grpc)
        return
    namesrv_config = _namesrv_beside(broker_config, options, namesrv_port, namesrv_file)
    _use_log_level(broker_config, namesrv_config)
    if brokers != 1:
        from kerolox.cli.commands.several.up import up_several

        up_several(namesrv_config, broker_config, options, brokers, wants_grpc=wants_grpc)
        return
    warn_of_left_out(broker_config.store_path_root_dir, 1)
    started = starting.up(namesrv_config, broker_config, wants_grpc=wants_grpc)
    starting.serve(started, options.ready_file)


def _use_log_level(*configs: RoleSettings) -> None:
    """Log what the first of them says that says something (``logLevel``)."""
    for config in configs:
        if config.log_level:
            config.use_log_level()
            return


def _namesrv_beside(
    broker_config: BrokerConfig, options: ServerOptions, port: int | None, file: Path | None
) -> NamesrvConfig:
    """The settings of the name server of ``up``."""
    from kerolox.namesrv.config import NamesrvConfig

    given = {} if file is None else read_properties(file)
    own = {name for key, name in setting_keys(NamesrvConfig).items() if key in given}
    tls = broker_config.tls_overrides()
    if own & tls.keys():
        # A certificate of the one file and a key of the other would be no pair.
        tls = {}
    shared: dict[str, object] = {
        "listen_host": broker_config.listen_host,
        "max_connections": broker_config.max_connections,
        "max_connections_per_address": broker_config.max_connections_per_address,
        **tls,
        **_namesrv_files(options.data or broker_config.store_path_root_dir),
    }
    overrides = {name: value for name, value in shared.items() if name not in own}
    overrides["listen_port"] = port
    if options.listen_host is not None:
        overrides["listen_host"] = options.listen_host
    if file is not None:
        overrides["config_store_path"] = file
    return NamesrvConfig.load_for_start(file, **overrides)


@click.command(cls=Command)
@click.option("--port", type=_PORT, help="Port to listen on (listenPort, 9876).")
@_server_options
def namesrv(options: ServerOptions, port: int | None) -> None:
    """Run a name server, on all addresses of this machine unless --host says otherwise."""
    from kerolox.cli.commands import starting
    from kerolox.namesrv.config import NamesrvConfig

    files = _namesrv_files(options.data) if options.data is not None else {}
    if options.config_file is not None:
        files["config_store_path"] = options.config_file
    config = NamesrvConfig.load_for_start(
        options.config_file,
        listen_port=port,
        listen_host=options.listen_host,
        log_level=options.log_level,
        **files,
    )
    _use_log_level(config)
    beside = None
    if config.enable_controller_in_namesrv and options.config_file is not None:
        beside = _controller_beside(options.config_file, options)
    starting.serve(starting.namesrv(config, beside), options.ready_file)


def _controller_beside(path: Path, options: ServerOptions) -> ControllerConfig:
    """The settings of a controller in the file of the name server that it runs with. A port of
    metrics that the file names is the name server's; the next one is the controller's."""
    from kerolox.config import read_properties, setting_keys
    from kerolox.controller.config import ControllerConfig
    from kerolox.namesrv.config import NamesrvConfig

    class Beside(ControllerConfig):
        keys_of_others = frozenset(
            setting_keys(NamesrvConfig).keys() | NamesrvConfig.unused_keys.keys()
        ) - frozenset(setting_keys(ControllerConfig))

    files: dict[str, object] = {}
    if options.data is not None:
        files["controller_store_path"] = options.data / "controller"
    config = Beside.load_for_start(
        path, listen_host=options.listen_host, log_level=options.log_level, **files
    )
    port = config.metrics_prom_exporter_port
    if port and "metricsPromExporterPort" in read_properties(path):
        return config.overridden(metrics_prom_exporter_port=port + 1)
    return config


@click.command(cls=Command)
@_advertise_option
@click.option("--port", type=_PORT, help="Port to listen on (listenPort, 10911).")
@click.option(
    "-n",
    "name_server",
    envvar="NAMESRV_ADDR",
    metavar="ADDR",
    help="Name servers, host:port joined by ';' (namesrvAddr).",
)
@click.option(
    "--role-of-settings",
    is_flag=True,
    help="Use brokerRole and brokerId of the settings, whatever a promotion made of them.",
)
@_grpc_option
@_server_options
def broker(
    options: ServerOptions,
    port: int | None,
    grpc_port: int | None,
    name_server: str | None,
    advertise: str | None,
    role_of_settings: bool,
) -> None:
    """Run a broker, on all addresses of this machine unless --host says otherwise.

    Its name, cluster and id come from the settings file. SIGHUP reads that again and reopens the
    log file, SIGUSR1 logs what the process does, SIGTERM stops it. systemd is notified
    (Type=notify).
    """
    from kerolox.broker.config import BrokerConfig
    from kerolox.broker.roles.record import forget_role
    from kerolox.cli.commands import starting

    config = BrokerConfig.load_for_start(
        options.config_file,
        listen_port=port,
        grpc_server_port=grpc_port,
        listen_host=options.listen_host,
        advertised_address=advertise,
        store_path_root_dir=options.data,
        log_level=options.log_level,
        namesrv_addr=name_server,
    )
    if role_of_settings:
        forget_role(config)
    _use_log_level(config)
    starting.serve(starting.broker(config), options.ready_file)


@click.command(cls=Command)
@click.option(
    "--self-id",
    metavar="ID",
    help="Which of controllerDLegerPeers this is (controllerDLegerSelfId).",
)
@_server_options
def controller(options: ServerOptions, self_id: str | None) -> None:
    """Run a controller, which decides who is the master of each broker name.

    One, three or five of them agree with each other. controllerDLegerPeers and
    controllerDLegerSelfId of the settings file say which they are, and where this one listens.
    """
    from kerolox.cli.commands import starting
    from kerolox.controller.config import ControllerConfig

    files: dict[str, object] = {}
    if options.data is not None:
        files["controller_store_path"] = options.data / "controller"
        files["config_store_path"] = options.data / "controller.properties"
    if options.config_file is not None:
        files["config_store_path"] = options.config_file
    config = ControllerConfig.load_for_start(
        options.config_file,
        listen_host=options.listen_host,
        log_level=options.log_level,
        controller_d_leger_self_id=self_id,
        **files,
    )
    _use_log_level(config)
    starting.serve(starting.controller(config), options.ready_file)


def _namesrv_files(data: Path) -> dict[str, object]:
    """Where a name server keeps its files below ``data``; the folder is made. ConfigError: it can't
    be made or written. Without this the first key-value would tell.
    """
    folder = data / "namesrv"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"the folder {folder} can't be made: {error.strerror}") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"the folder {folder} can't be written by this user")
    return {
        "kv_config_path": folder / "kvConfig.json",
        "config_store_path": folder / "namesrv.properties",
    }
