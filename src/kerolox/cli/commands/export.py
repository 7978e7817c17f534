"""``kerolox export``: what a cluster has, as the files of ``mqadmin``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from kerolox.cli.cluster_options import (
    Place,
    cluster_option,
    name_server_option,
    place_options,
)
from kerolox.cli.connecting import on_cluster
from kerolox.cli.grouping import CommandGroup
from kerolox.cli.output import RAW, complain, print_line
from kerolox.cli.values import escaped_json

if TYPE_CHECKING:
    from kerolox.admin import ConfigsExport, Metadata, MetricsExport

_file_option = click.option(
    "--file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Written whole, instead of stdout.",
)


_cluster_option = cluster_option("Of this cluster; else of the only one.")


@click.group(cls=CommandGroup)
def export() -> None:
    """Write topics and groups, settings or metrics of a cluster as JSON.

    The members are those of the files that mqadmin writes. kerolox topic list -o json has more of
    topics.

    \b
    kerolox export metadata --file metadata.json
    """


@export.command("metadata")
@click.option("--special", is_flag=True, help="Topics of retries and dead letters, too.")
@place_options
@_file_option
@name_server_option
def metadata_command(special: bool, place: Place, file: Path | None, name_server: str) -> None:
    """Write all topics and consumer groups with their settings (exportMetadata)."""
    _write(
        on_cluster(
            name_server, lambda admin: admin.export_metadata(**place._asdict(), special=special)
        ),
        file,
    )


@export.command("configs")
@_cluster_option
@_file_option
@name_server_option
def configs_command(cluster: str, file: Path | None, name_server: str) -> None:
    """Write how many nodes there are, and the main settings of the masters (exportConfigs)."""
    _write(on_cluster(name_server, lambda admin: admin.export_configs(cluster=cluster)), file)


@export.command("metrics")
@_cluster_option
@_file_option
@name_server_option
def metrics_command(cluster: str, file: Path | None, name_server: str) -> None:
    """Write how much the masters are used, and by which clients (exportMetrics)."""
    _write(on_cluster(name_server, lambda admin: admin.export_metrics(cluster=cluster)), file)


def _write(found: Metadata | ConfigsExport | MetricsExport, file: Path | None) -> None:
    text = found.to_json()
    if file is None:
        print_line(escaped_json(text.decode()), RAW)
        return
    from kerolox.config import replace_file

    replace_file(file, lambda opened: opened.write(text + b"\n"), keeps_backup=False)
    complain(f"kerolox: {file} is written")
