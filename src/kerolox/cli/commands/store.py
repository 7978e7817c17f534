"""``kerolox store``: check, dump, info, rebuild, and the commands of backups; Java's stores too."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from kerolox.cli import completing
from kerolox.cli.grouping import CommandGroup
from kerolox.cli.output import (
    TABLE,
    clear_status,
    complain,
    output_option,
    print_json,
    print_line,
    show_status,
)
from kerolox.cli.rows import columns_of, is_text, show_row
from kerolox.errors import KeroloxError
from kerolox.text import counted, milliseconds_of, time_text

if TYPE_CHECKING:
    from kerolox.inspect.backup.manifest import Manifest
    from kerolox.inspect.findings import Findings
    from kerolox.inspect.info import StoreInfo
    from kerolox.inspect.places import StorePlaces


PROGRESS_SECONDS = 0.2
_MEBIBYTE = 1 << 20


def _store_options(command: Callable[..., int | None]) -> Callable[..., int | None]:
    """The folder, ``-c`` and ``--log-folder``."""
    for decorate in (
        click.option(
            "--log-folder",
            "log_folders",
            multiple=True,
            metavar="DIR",
            help="A folder of the commit log, when it is not DIR/commitlog; may be repeated.",
        ),
        click.option(
            "-c",
            "config",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="The store's broker.conf: folders of the log, delay levels, index sizes.",
        ),
        click.argument("folder", metavar="DIR", shell_complete=completing.folders),
    ):
        command = decorate(command)
    return command


class _Progress:
    """A line on stderr that is written over; nothing where stderr is no terminal."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._started = self._last = time.monotonic()

    def __enter__(self) -> _Progress:
        return self

    def __call__(self, done: int, total: int) -> None:
        """Show how much is done, of bytes."""
        now = time.monotonic()
        if now - self._last < PROGRESS_SECONDS:
            return
        self._last = now
        rate = done / _MEBIBYTE / max(now - self._started, 0.001)
        part = 100 * done // max(total, 1)
        line = f"{self._what} {part:3d}% of {total // _MEBIBYTE} MiB, {rate:.0f} MiB/s"
        show_status(line)

    def __exit__(self, *_: object) -> None:
        clear_status()


def _find_store(
    folder: str, config: Path | None, log_folders: tuple[str, ...], *, has_index: bool = True
) -> StorePlaces:
    """The store that the options of :func:`_store_options` name. StoreError: it is missing or no
    store. ConfigError: its settings can't be read.
    """
    import dataclasses

    from kerolox.inspect.places import StoreOptions, StorePlaces

    options = StoreOptions() if config is None else StoreOptions.of_settings(config)
    options = dataclasses.replace(
        options,
        log_folders=log_folders or options.log_folders,
        has_index=has_index and options.has_index,
    )
    return StorePlaces.find(folder, options)


EXIT_FINDINGS = 1
EXIT_UNREADABLE = 2
SHOWN_DEFAULT = 100


@click.group(cls=CommandGroup)
def store() -> None:
    """Check, print, describe, copy and repair the files of a store.

    DIR is the folder that storePathRootDir names (that of `kerolox up --data`), of a broker of
    RocketMQ 4.x or of this one. All but rebuild leave it as it is, and work beside a running
    broker.

    \b
      kerolox store check ~/store
      kerolox store dump ~/store --topic Orders --queue 0 --limit 10
      kerolox store info ~/store -o json
      kerolox store rebuild ~/store
      kerolox store backup ~/store /backup/monday
    """


@store.command()
@_store_options
@click.option("--no-index", is_flag=True, help="The broker keeps no index (messageIndexEnable).")
@click.option(
    "--show",
    type=click.IntRange(0),
    default=SHOWN_DEFAULT,
    show_default=True,
    help="Print so many findings at most.",
)
@output_option
def check(
    folder: str,
    config: Path | None,
    log_folders: tuple[str, ...],
    no_index: bool,
    show: int,
    output: str,
) -> int:
    """Read everything and say what does not fit.

    Every record with its CRC; queues and extension files against the log and the log against the
    queues; the index against the log; checkpoint and tables. After a crash, what the next start
    repairs is a note and no finding. Exit code 0: clean, 1: findings, 2: can't be read.

    \b
      kerolox store check ~/store
      kerolox store check /data/rocketmq -c broker.conf -o json
    """
    from kerolox.inspect.check import check_store

    try:
        places = _find_store(folder, config, log_folders, has_index=not no_index)
        with _Progress("checking") as progress:
            report = check_store(places, progress)
    except (KeroloxError, OSError) as error:
        raise _UnreadableError(_error_text(error)) from error
    findings = report.findings
    if output == "json":
        print_json(
            {
                "clean": report.is_clean,
                "records": report.records,
                "logBytes": report.log_bytes,
                "queueEntries": report.queue_entries,
                "indexEntries": report.index_entries,
                "configFiles": report.config_files,
                "counts": dict(findings.counts),
                "findings": [
                    {
                        "part": each.part,
                        "file": each.path,
                        "position": each.position,
                        "text": each.text,
                    }
                    for each in findings.kept[:show]
                ],
                "notes": findings.notes,
            }
        )
        return 0 if report.is_clean else EXIT_FINDINGS
    _print_findings(findings, show, output)
    print_line(
        f"{report.records} records in {report.log_bytes} bytes of log, {report.queue_entries} "
        f"queue entries, {report.index_entries} index entries, {report.config_files} tables"
    )
    counts = ", ".join(f"{part} {count}" for part, count in findings.counts.items())
    print_line("clean" if report.is_clean else f"findings: {findings.count} ({counts})")
    return 0 if report.is_clean else EXIT_FINDINGS


@store.command()
@_store_options
@click.option("--from", "from_offset", type=click.IntRange(0), help="Physical offset to begin at.")
@click.option("--to", "to_offset", type=click.IntRange(0), help="Physical offset to stop before.")
@click.option("--topic", default="", metavar="TOPIC", help="Records of this topic only.")
@click.option("--queue", "queue_id", type=click.IntRange(0), help="Records of this queue only.")
@click.option(
    "--offset",
    "queue_offsets",
    metavar="N|N:M",
    help="Queue offset, or a range N:M, N: or :M, M not included; needs --topic and --queue.",
)
@click.option(
    "--since",
    metavar="TIME",
    help="Stored at this time or later: milliseconds, or 2026-01-31T12:00.",
)
@click.option("--until", metavar="TIME", help="Stored before this time.")
@click.option(
    "--body",
    type=click.Choice(["text", "base64", "none"]),
    default="text",
    show_default=True,
    help="How bodies are printed; text that is no UTF-8 is base64.",
)
@click.option("--limit", type=click.IntRange(1), help="Stop after so many.")
def dump(
    folder: str,
    config: Path | None,
    log_folders: tuple[str, ...],
    from_offset: int | None,
    to_offset: int | None,
    topic: str,
    queue_id: int | None,
    queue_offsets: str | None,
    since: str | None,
    until: str | None,
    body: str,
    limit: int | None,
) -> None:
    """Print records as JSON lines, in the order of the log.

    Damaged places are skipped, and reported on stderr.

    \b
      kerolox store dump ~/store --topic Orders --queue 0 --offset 100:200
      kerolox store dump ~/store --from 1073741824 --limit 1 --body base64
      kerolox store dump ~/store --since 2026-01-31T12:00 | jq .keys
    """
    from kerolox.cli.process.status import status_of
    from kerolox.inspect.dump import OFFSET_MAX, Selection, as_json, select_records
    from kerolox.inspect.findings import Findings

    first, stop = _range(queue_offsets, OFFSET_MAX)
    selection = Selection(
        from_offset=from_offset or 0,
        to_offset=OFFSET_MAX if to_offset is None else to_offset,
        topic=topic,
        queue_id=-1 if queue_id is None else queue_id,
        from_queue_offset=first,
        to_queue_offset=stop,
        since_ms=_time(since, 0),
        until_ms=_time(until, OFFSET_MAX),
        limit=OFFSET_MAX if limit is None else limit,
    )
    findings = Findings()
    places = _find_store(folder, config, log_folders)
    count = 0

    def doing() -> str:
        # Records that a terminal gets are status enough.
        return "" if count and sys.stdout.isatty() else f"printed {counted(count, 'record')}"

    with status_of(doing):
        for message in select_records(places, selection, findings):
            print_json(as_json(message, body))
            count += 1
    sys.stdout.flush()
    for finding in findings.kept:
        complain(f"kerolox: {finding}")


@store.command()
@_store_options
@output_option
def info(folder: str, config: Path | None, log_folders: tuple[str, ...], output: str) -> None:
    """Print sizes, offsets, topics with their queues, the oldest and the newest message.

    \b
      kerolox store info ~/store
      kerolox store info ~/store -o json | jq '.topics[] | {topic, messages}'
    """
    from kerolox.cli.process.status import status_of
    from kerolox.inspect.info import describe_store

    places = _find_store(folder, config, log_folders)
    with status_of(lambda: f"reading {places.root}"):
        described = describe_store(places)
    if output == "json":
        print_json(described.as_json())
    else:
        _print_info(described, output)


@store.command()
@_store_options
@click.option("--no-index", is_flag=True, help="Leave the index as it is.")
@click.option("--all-topics", is_flag=True, help="Queues of deleted topics too.")
def rebuild(
    folder: str,
    config: Path | None,
    log_folders: tuple[str, ...],
    no_index: bool,
    all_topics: bool,
) -> int:
    """Rebuild queues and index from the log.

    The broker must be stopped. The old ones are removed when the new ones stand; until then a
    failure or an interrupt leaves the store as it was. Needs space for both. Exit code 1 when the
    log is damaged: what it lacks stays lacking.

    \b
      kerolox store rebuild ~/store
      kerolox store rebuild /data/rocketmq -c broker.conf
    """
    from kerolox.cli.process.running import make_files_private
    from kerolox.inspect.rebuild import rebuild_store

    make_files_private()
    places = _find_store(folder, config, log_folders, has_index=not no_index)
    with _Progress("rebuilding") as progress:
        report = rebuild_store(places, all_topics=all_topics, progress=progress)
    _print_findings(report.findings, SHOWN_DEFAULT)
    for topic, count in report.skipped_topics.items():
        print_line(f"note: {count} records of {topic}, a deleted topic: left out")
    print_line(
        f"{report.records} records: {report.queues} queues with {report.queue_entries} entries, "
        f"{report.index_entries} index entries, {report.seconds:.1f} s"
    )
    return EXIT_FINDINGS if report.findings.count else 0


class _UnreadableError(click.ClickException):
    exit_code = EXIT_UNREADABLE

    def show(self, file: IO[str] | None = None) -> None:
        complain(f"kerolox: error: {self.message}")


def _error_text(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def _range(text: str | None, most: int) -> tuple[int, int]:
    """``N``, ``N:M``, ``N:``, ``:M`` as [first, stop)."""
    if text is None:
        return 0, most
    first, colon, stop = text.partition(":")
    if not all(part.isascii() and part.isdigit() for part in (first, stop) if part) or text == ":":
        raise click.BadParameter(f"{text!r} is no offset and no range such as 100:200")
    if not colon:
        return int(first), int(first) + 1
    return int(first or 0), int(stop) if stop else most


def _time(text: str | None, default: int) -> int:
    if text is None:
        return default
    try:
        return milliseconds_of(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _print_findings(findings: Findings, most: int, output: str = TABLE) -> None:
    show = functools.partial(print_line, output=output)
    for finding in findings.kept[:most]:
        show(str(finding))
    more = findings.count - min(most, len(findings.kept))
    if more > 0:
        show(f"... and {more} more")
    for note in findings.notes:
        show(f"note: {note}")


def _print_info(described: StoreInfo, output: str) -> None:
    show = functools.partial(print_line, output=output)
    state = "in use by a broker" if described.is_in_use else "not in use, closed cleanly"
    if not described.is_in_use and not described.is_closed_cleanly:
        state = "not in use, NOT closed cleanly: the next start recovers it"
    show(f"store {described.root}: {state}")
    span = described.max_offset - described.min_offset
    show(
        f"  log       {described.log_files} files of {described.log_file_bytes} bytes, offsets "
        f"{described.min_offset} to {described.max_offset} ({span} bytes)"
    )
    for name, message in (("oldest", described.oldest), ("newest", described.newest)):
        if message is not None:
            show(
                f"  {name:9} {time_text(message.store_timestamp)}  {message.topic}, queue "
                f"{message.queue_id}, offset {message.queue_offset}, at {message.commit_log_offset}"
            )
    show(f"  index     {described.index_files} files, {described.index_entries} entries")
    if described.checkpoint is None:
        show("  checkpoint: none")
    else:
        names = ("log", "queues", "index")
        times = zip(names, described.checkpoint, strict=True)
        show("  on disk   " + ", ".join(f"{name} {time_text(when)}" for name, when in times))
    if described.epochs:
        begins = (f"{each.epoch} from {each.start}" for each in described.epochs)
        show("  epochs    " + ", ".join(begins))
    if described.epochs_fault:
        show(f"  epochs    {described.epochs_fault}")
    for part, (size, used) in described.sizes.items():
        show(f"  {part:16} {size:>14} bytes, {used:>14} on disk")
    show(f"  {'topic':40} {'queue':>5} {'min':>12} {'max':>12} {'messages':>12}")
    total = 0
    for topic, queues in described.topics.items():
        for queue in queues:
            count = queue.max_offset - queue.min_offset
            total += count
            show(
                f"  {topic:40} {queue.queue_id:>5} {queue.min_offset:>12} {queue.max_offset:>12} "
                f"{count:>12}"
            )
    show(f"  {total} messages in {len(described.queues)} queues")


EXIT_FAULTS = 1


@store.command()
@_store_options
@click.option("--no-index", is_flag=True, help="Copy no index; keys are not found in the copy.")
@click.argument("target", metavar="BACKUP", shell_complete=completing.folders)
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
    places = _find_store(folder, config, log_folders, has_index=not no_index)
    with _Progress("copying") as progress:
        manifest = back_up(places, target, progress)
    _show(manifest, target, output)


@store.command()
@click.argument("folder", metavar="BACKUP", shell_complete=completing.folders)
@output_option
def verify(folder: str, output: str) -> int:
    """Read a backup and compare every byte with what was written.

    Exit code 0: all is there, 1: something is missing or other than it was, or BACKUP is no backup.

    \b
      kerolox store verify /backup/monday
    """
    from kerolox.inspect.backup.manifest import verify_backup

    with _Progress("reading") as progress:
        manifest, faults = verify_backup(folder, progress)
    if is_text(output):
        for fault in faults:
            print_line(fault)
    _show(manifest, folder, output, faults=faults)
    return EXIT_FAULTS if faults else 0


@store.command()
@click.option(
    "--log-folder",
    metavar="FOLDER",
    help="Where the commit log goes, when that is not DIR/commitlog (storePathCommitLog).",
)
@click.argument("folder", metavar="BACKUP", shell_complete=completing.folders)
@click.argument("target", metavar="DIR", shell_complete=completing.folders)
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
    with _Progress("copying") as progress:
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
