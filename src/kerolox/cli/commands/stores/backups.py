"""``kerolox store backup``, ``verify`` and ``restore``: copies of a store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from kerolox.cli.commands.stores.sharing import Progress, find_store, store_options
from kerolox.cli.output import output_option, print_line
from kerolox.cli.rows import columns_of, is_text, show_row
from kerolox.text import counted, time_text

if TYPE_CHECKING:
    from kerolox.inspect.backup.manifest import Manifest

EXIT_FAULTS = 1


@click.command()
@store_options
@click.option("--no-index", is_flag=True, help="Copy no index; keys are not found in the copy.")
@click.argument("target", metavar="BACKUP")
@output_option
def backup(
    folder: str,
    config: Path | None,
    log_folders: tuple[str, ...],
    no_index: bool,
    target: str,
    output: str,
) -> None:
    """Copy a store into the new folder BACKUP, while its broker runs or not.

    In it is every message that was acknowledged before, and what groups had consumed, as the
    broker wrote it down last (each 5 seconds). The copy is opened once and closed cleanly, so that
    any broker, ours or Java's, opens what is restored from it. Until it is whole its folder is
    called BACKUP.part; an error or an interrupt removes it.

    Give -c where the broker's settings say more of the store than sizes: folders of the log, delay
    levels, further queues. With a transient store pool the last half second may be missing.

    \b
      kerolox store backup ~/store /backup/monday
      kerolox store backup /data/rocketmq /backup/monday -c broker.conf
    """
    from kerolox.cli.process.running import make_files_private, raise_descriptor_limit
    from kerolox.inspect.backup.taking import back_up

    make_files_private()
    raise_descriptor_limit()
    places = find_store(folder, config, log_folders, has_index=not no_index)
    with Progress("copying") as progress:
        manifest = back_up(places, target, progress)
    _show(manifest, target, output)


@click.command()
@click.argument("folder", metavar="BACKUP")
@output_option
def verify(folder: str, output: str) -> int:
    """Read a backup and compare every byte with what was written.

    Exit code 0: all is there, 1: something is missing or other than it was, or BACKUP is no backup.

    \b
      kerolox store verify /backup/monday
    """
    from kerolox.inspect.backup.manifest import verify_backup

    with Progress("reading") as progress:
        manifest, faults = verify_backup(folder, progress)
    if is_text(output):
        for fault in faults:
            print_line(fault)
    _show(manifest, folder, output, faults=faults)
    return EXIT_FAULTS if faults else 0


@click.command()
@click.option(
    "--log-folder",
    metavar="FOLDER",
    help="Where the commit log goes, when that is not DIR/commitlog (storePathCommitLog).",
)
@click.argument("folder", metavar="BACKUP")
@click.argument("target", metavar="DIR")
@output_option
def restore(folder: str, target: str, log_folder: str | None, output: str) -> None:
    """Make the store DIR of a backup, comparing every byte with what was written.

    DIR is new or empty. Until it is whole it is called DIR.part; an error or an interrupt removes
    it. The backup stays as it is. Start the broker on DIR then, with the settings that it had.

    \b
      kerolox store restore /backup/monday ~/store
    """
    from kerolox.cli.process.running import make_files_private
    from kerolox.inspect.backup.restoring import restore_backup

    make_files_private()
    with Progress("copying") as progress:
        manifest = restore_backup(folder, target, log_folder=log_folder, progress=progress)
    _show(manifest, target, output)


def _show(manifest: Manifest, folder: str, output: str, *, faults: list[str] | None = None) -> None:
    row: dict[str, object] = {
        "folder": folder,
        "files": len(manifest.files),
        "bytes": manifest.size,
        "logBegin": manifest.log_begin,
        "logEnd": manifest.log_end,
        "began": manifest.began_ms,
        "source": manifest.source,
        "kerolox": manifest.kerolox,
    }
    if faults is not None:
        row["faults"] = faults
    if not is_text(output):
        show_row(row, columns_of(row), output)
        return
    print_line(
        f"{folder}: {len(manifest.files)} files, {manifest.size} bytes, the log from "
        f"{manifest.log_begin} to {manifest.log_end}, of {time_text(manifest.began_ms)}"
        + (f"; {counted(len(faults), 'fault')}" if faults else "")
    )
