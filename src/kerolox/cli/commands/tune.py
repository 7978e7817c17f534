"""``kerolox tune``: limits of this machine that a broker wants otherwise."""

from __future__ import annotations

from pathlib import Path

import click

from kerolox.cli.grouping import Command
from kerolox.cli.output import complain, output_option, print_line
from kerolox.cli.rows import Column, is_text, show_rows
from kerolox.config import replace_file
from kerolox.errors import ConfigError

EXIT_LEFT = 1

_COLUMNS = (
    Column("setting", "SETTING"),
    Column("now", "NOW"),
    Column("accepted", "WANTED"),
    Column("wanted", "SET BY --apply"),
    Column("state", "STATE"),
    Column("why", "WHY"),
)


@click.command(cls=Command)
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The store, whose disk is examined. Default: ~/store.",
)
@click.option("--apply", "applies", is_flag=True, help="Set it now, until the machine restarts.")
@click.option(
    "--write",
    "file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write it as a file for /etc/sysctl.d, which keeps it.",
)
@output_option
def tune(data: Path | None, applies: bool, file: Path | None, output: str) -> int:
    """Compare the limits of this machine with those that a broker wants.

    What RocketMQ's os.sh sets: memory maps, swapping, dirty pages, open files, the disk's
    scheduler, huge pages. Nothing is changed without --apply or --write. Exit code: 0 all is as
    it is wanted, 1 something is not.

    \b
    kerolox tune --data /var/lib/kerolox
    kerolox tune --write /etc/sysctl.d/60-kerolox.conf && sysctl --system
    """
    from kerolox.broker.config import BrokerConfig
    from kerolox.doctor.tuning import apply, read_knobs, sysctl_text

    folder = data or BrokerConfig().store_path_root_dir
    knobs = read_knobs(folder)
    if file is not None:
        text = sysctl_text(knobs).encode()
        try:
            replace_file(file, lambda opened: opened.write(text))
        except OSError as error:
            raise ConfigError(f"{file} can't be written: {error.strerror}") from error
    failed = {}
    if applies:
        for knob in knobs:
            reason = "" if knob.is_right else apply(knob)
            if reason:
                failed[knob.name] = reason
        knobs = read_knobs(folder)
    rows = [
        {
            "setting": knob.name,
            "now": knob.now,
            "wanted": knob.wanted,
            "accepted": knob.accepted or knob.wanted,
            "state": "right" if knob.is_right else "wrong",
            "why": knob.why,
        }
        for knob in knobs
    ]
    show_rows(rows, _COLUMNS, output)
    for name, reason in failed.items():
        complain(f"kerolox: {name} is left as it is: {reason}")
    if file is not None and is_text(output):
        print_line(f"{file} is written; in force with sysctl --system")
    return EXIT_LEFT if any(not knob.is_right for knob in knobs) else 0
