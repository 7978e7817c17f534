"""``kerolox spark JOB``: jobs on Spark; a command for each of the registry."""

from __future__ import annotations

import dataclasses
import functools
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kerolox.cli.cluster_options import name_server_option
from kerolox.cli.connecting import security
from kerolox.cli.grouping import Command, CommandGroup
from kerolox.cli.output import complain, one_line, output_option, print_json, print_line
from kerolox.cli.values import with_texts
from kerolox.errors import ConfigError

if TYPE_CHECKING:
    from types import FrameType, ModuleType

    from kerolox.spark.jobs import Job, JobOptions, Step, Summary
    from kerolox.spark.jobs.frame.options import OptionField

LINE_SECONDS = 10.0
"""Time between two lines of progress where stderr is no terminal."""

TERMINAL_SECONDS = 0.2


def _jobs() -> ModuleType:
    try:
        from kerolox.spark import jobs
    except ImportError as error:
        raise ConfigError(
            f"jobs run on Spark, and there is no PySpark here ({error}); install kerolox[spark]"
        ) from None
    return jobs


class JobGroup(CommandGroup):
    """The commands of the registry, each made from its job when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all jobs."""
        return list(_jobs().JOBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Make a job's command."""
        if cmd_name not in _jobs().JOBS:
            return None
        return with_texts(_command(_jobs().load_job(cmd_name)))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, with the nearest name when there is no such job."""
        if args and args[0] not in _jobs().JOBS and not args[0].startswith("-"):
            try:
                _jobs().load_job(args[0])
            except ConfigError as error:
                raise click.UsageError(str(error), ctx) from None
        return super().resolve_command(ctx, args)


@click.group(cls=JobGroup)
def spark() -> None:
    """Run a job on Spark: archive topics, replay messages.

    A job runs in a Spark of its own on this machine, in one that --master names, or in the one of
    spark-submit. The summary goes to stdout, progress to stderr.

    \b
      kerolox spark archive --topic Orders --to /data/orders
      spark-submit --master yarn $(which kerolox) spark archive --topic Orders --to
      s3a://lake/orders
    """


def _command(job: Job[Any, Any]) -> click.Command:
    from kerolox.spark.jobs.frame.cluster import ClusterOptions
    from kerolox.spark.jobs.frame.options import fields_of

    command: Callable[..., Any] = output_option(_callback(job))
    if issubclass(job.options, ClusterOptions):
        command = name_server_option(command)
    made = click.command(job.name, cls=Command, help=job.help)(command)
    own = [_parameter(each) for each in fields_of(job.options) if not each.meaning.is_given]
    made.params = [*own, *_spark_options(has_report=job.report is not None), *made.params]
    return made


def _callback(job: Job[Any, Any]) -> Callable[..., int]:
    """A function of its own for each command: decorators leave their marks on it."""
    return functools.wraps(_run)(functools.partial(_run, job))


def _spark_options(*, has_report: bool) -> list[click.Parameter]:
    report = click.Option(
        ["--report"],
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help="Write a page (HTML) for people to read.",
    )
    master = click.Option(
        ["--master"],
        metavar="URL",
        help="Spark to run in: local[4], spark://..., sc://... (Spark Connect); else that of"
        " spark-submit or local[*].",
    )
    settings = click.Option(
        ["--conf", "settings"],
        multiple=True,
        metavar="NAME=VALUE",
        help="A setting of Spark; may be repeated.",
    )
    return [*([report] if has_report else []), master, settings]


def _parameter(field: OptionField) -> click.Parameter:
    """The command's option for a field."""
    meaning = field.meaning
    text = meaning.text[:1].upper() + meaning.text[1:]
    names = [field.flag, field.name]
    if field.kind is bool:
        off = f"--no-{field.flag.removeprefix('--')}"
        is_on = field.default is True
        return click.Option(
            [f"{field.flag}/{off}" if is_on else field.flag, field.name],
            is_flag=True,
            default=field.default,
            help=f"{text}.",
        )
    shown = field.default not in (None, "", (), {}) and not field.is_required
    kind: click.ParamType[Any] = click.STRING
    if meaning.choices:
        kind = click.Choice(meaning.choices)
    elif field.kind is int and not meaning.is_time:
        kind = click.INT
    elif field.kind is float:
        kind = click.FLOAT
    metavar = meaning.metavar or None
    if field.kind is dict:
        metavar = metavar or "NAME=VALUE"
    multiple = field.kind in (tuple, dict)
    return click.Option(
        names,
        type=kind,
        required=field.is_required,
        multiple=multiple,
        default=None if multiple or field.is_required else field.default,
        show_default=shown and not multiple,
        metavar=metavar,
        help=f"{text}.",
    )


def _run(
    job: Job[Any, Any],
    *,
    output: str,
    master: str | None,
    settings: tuple[str, ...],
    report: Path | None = None,
    **given: object,
) -> int:
    """Make options, session and progress; run; print the summary."""
    of_spark = {**dict(job.settings), **_pairs("--conf", settings)}
    options = _options(job, given)
    if report is not None and not report.absolute().parent.is_dir():
        raise ConfigError(f"option --report: there is no folder {report.absolute().parent}")
    from kerolox.spark.jobs.frame.session import open_session

    with _terminable(), _Shown() as progress:
        session = open_session(job.name, master=master, settings=of_spark)
        try:
            summary: Summary = job.run(session, options, progress)
        finally:
            session.stop()
    if report is not None and job.report is not None:
        from kerolox.spark.jobs.report import write_report

        write_report(job.report(summary), report)
    if output == "json":
        print_json(summary.as_json())
    else:
        for line in summary.lines():
            print_line(line, output)
    return summary.exit_code


def _options(job: Job[Any, Any], given: dict[str, object]) -> JobOptions:
    from kerolox.spark.jobs.frame.options import fields_of

    values: dict[str, object] = {}
    for field in fields_of(job.options):
        if field.meaning.is_given:
            continue
        value = given[field.name]
        if isinstance(value, tuple) and field.kind is dict:
            value = _pairs(field.flag, value)
        elif isinstance(value, str) and field.meaning.is_time:
            value = _time(field.flag, value)
        values[field.name] = value
    if "name_server" in given:
        known = security()
        values |= {
            "name_server": given["name_server"],
            "credentials": known.credentials,
            "tls": known.tls,
        }
    options: JobOptions = job.options(**values)
    return options


def _pairs(flag: str, texts: tuple[str, ...]) -> dict[str, str]:
    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name.strip() and equals):
            raise click.UsageError(f"option {flag}: {text!r} is no NAME=VALUE")
        pairs[name.strip()] = value
    return pairs


def _time(flag: str, text: str) -> int:
    from kerolox.text import milliseconds_of

    try:
        return milliseconds_of(text)
    except ValueError as error:
        raise click.UsageError(f"option {flag}: {error}") from None


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM ends a job as SIGINT does: streams stop, and what was begun is left resumable."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Shown:
    """Progress on stderr: a line that is written over, or one now and then for a log."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr is not None and sys.stderr.isatty()
        self._pause = TERMINAL_SECONDS if self._is_terminal else LINE_SECONDS
        self._text = ""
        self._at = 0.0
        self._has_line = False

    def __enter__(self) -> _Shown:
        return self

    def __call__(self, step: Step) -> None:
        now = time.monotonic()
        if step.text == self._text and now - self._at < self._pause:
            return
        self._text, self._at = step.text, now
        line = dataclasses.replace(step, text=one_line(step.text))
        if self._is_terminal:
            click.echo(f"\r{one_line(str(line)):78.78}", nl=False, err=True)
            self._has_line = True
        else:
            complain(f"kerolox: {line}")

    def __exit__(self, *_: object) -> None:
        if self._has_line:
            click.echo(f"\r{'':78}\r", nl=False, err=True)
