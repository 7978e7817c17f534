"""What jobs share besides options: summaries, progress, errors, the registry, the command."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import ClassVar

import pytest
from click.testing import CliRunner

from kerolox.cli.commands import spark as command
from kerolox.errors import ConfigError
from kerolox.spark.jobs import JOBS, Job, Step, Summary, load_job, registry
from kerolox.spark.jobs.frame import session
from kerolox.spark.jobs.frame.cluster import ClusterOptions
from kerolox.spark.jobs.frame.errors import JobError, clear_errors, reason_of
from kerolox.spark.jobs.frame.options import fields_of, option
from kerolox.spark.jobs.report import Report


class Kind(StrEnum):
    FIRST = "a"
    SECOND = "b"


@dataclass(frozen=True)
class Part:
    log_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CountSummary(Summary):
    job: ClassVar[str] = "count"
    row_count: int
    by_topic: Mapping[str, int]
    parts: tuple[Part, ...] = ()
    where: Path = Path("x")

    @property
    def exit_code(self) -> int:
        return 1 if self.parts else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CountOptions(ClusterOptions):
    topics: tuple[str, ...] = option("a topic", flag="topic")
    since: int | None = option("stored since", default=None, is_time=True)
    sets: Mapping[str, str] = option("changes", default={}, flag="set")
    keep: bool = option("keep all", default=True)
    kind: str = option("a kind", default="b", choices=tuple(Kind))
    limit: int = option("most rows", default=3, minimum=1)


class Session:
    """Stands for Spark's."""

    is_stopped = False

    def stop(self) -> None:
        self.is_stopped = True


def count(spark: Session, options: CountOptions, progress: object) -> CountSummary:
    progress(Step("counting", 1, 2))
    if options.limit == 99:
        raise JobError("nothing was counted")
    seen.append((spark, options))
    return CountSummary(seconds=1.23456, row_count=2, by_topic={"t\x1b": 2})


COUNT = Job(
    name="count",
    help="Count the rows.",
    options=CountOptions,
    run=count,
    report=lambda summary: Report("Count", "now", []),
)
seen: list[tuple[Session, CountOptions]] = []


@pytest.fixture
def run(monkeypatch):
    """Runs the command with a session that is none."""
    opened = []

    def open_session(name, **given):
        opened.append((name, given, Session()))
        return opened[-1][2]

    seen.clear()
    monkeypatch.setitem(registry.JOBS, "count", f"{__name__}:COUNT")
    monkeypatch.setattr(session, "open_session", open_session)

    def invoke(*arguments):
        return CliRunner().invoke(command.spark, ["count", *arguments])

    invoke.opened = opened  # type: ignore[attr-defined]
    return invoke


def test_a_summary_is_json_with_names_as_rocketmq_has_them():
    summary = CountSummary(seconds=1.23456, row_count=2, by_topic={"t": 2}, parts=(Part(3),))
    assert summary.as_json() == {
        "job": "count",
        "seconds": 1.235,
        "rowCount": 2,
        "byTopic": {"t": 2},
        "parts": [{"logBytes": 3}],
        "where": "x",
    }
    assert list(summary.lines())[:5] == [
        "job: count",
        "seconds: 1.235",
        "rowCount: 2",
        "byTopic:",
        "  t: 2",
    ]


def test_options_of_the_command_become_options_of_the_job(run):
    result = run(
        *("--topic", "a", "--topic", "b", "--since", "2026-01-31T12:00+00:00", "--no-keep"),
        *("--set", "tags='x=y'", "-n", "names:1", "--conf", "spark.a=1", "--master", "local[2]"),
        *("-o", "json", "--kind", "a"),
    )
    assert result.exit_code == 0, result.output
    [(_, options)] = seen
    assert options == CountOptions(
        name_server="names:1",
        topics=("a", "b"),
        since=1_769_860_800_000,
        sets={"tags": "'x=y'"},
        keep=False,
        kind="a",
    )
    assert result.stdout == (
        '{"job": "count", "seconds": 1.235, "rowCount": 2, "byTopic": {"t\\u001b": 2}, '
        '"parts": [], "where": "x"}\n'
    )
    assert "kerolox: counting: 1 of 2 rows (50 %)" in result.stderr
    [(name, given, opened)] = run.opened
    assert (name, given) == ("count", {"master": "local[2]", "settings": {"spark.a": "1"}})
    assert opened.is_stopped


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "Missing option '--topic'"),
        (("--topic", "a", "--set", "x"), "option --set: 'x' is no NAME=VALUE"),
        (("--topic", "a", "--since", "noon"), "option --since: 'noon' is no time"),
        (("--topic", "a", "--limit", "many"), "'many' is not a valid integer"),
        (("--tpic", "a"), "No such option '--tpic'"),
    ],
)
def test_wrong_usage_has_exit_code_2_and_starts_no_spark(run, arguments, text):
    result = run(*arguments)
    assert result.exit_code == 2
    assert text in result.stderr
    assert run.opened == []


def test_a_value_that_the_job_refuses_starts_no_spark(run, tmp_path):
    result = run("--topic", "a", "--limit", "0")
    assert isinstance(result.exception, ConfigError)
    assert "option --limit: 0 must be 1 or more" in str(result.exception)
    page = run("--topic", "a", "--report", str(tmp_path / "none" / "page.html"))
    assert "option --report: there is no folder" in str(page.exception)
    assert run.opened == []


def test_a_job_that_fails_stops_its_spark(run):
    result = run("--topic", "a", "--limit", "99")
    assert isinstance(result.exception, JobError)
    assert run.opened[0][2].is_stopped


def test_a_report_is_written_where_it_is_asked_for(run, tmp_path):
    result = run("--topic", "a", "--report", str(tmp_path / "page.html"))
    assert result.exit_code == 0, result.output
    assert "<h1>Count</h1>" in (tmp_path / "page.html").read_text()


def test_help_has_every_option_with_its_meaning(run):
    text = run("--help")
    for each in fields_of(CountOptions):
        if not each.meaning.is_given:
            assert each.flag in text.output
            assert each.meaning.text.capitalize() in text.output
    assert "-n, --context" in text.output
    assert "--master" in text.output


def test_an_unknown_job_is_an_error_that_names_the_nearest(run):
    with pytest.raises(ConfigError, match="there is no job 'cuont'; did you mean count"):
        load_job("cuont")
    result = CliRunner().invoke(command.spark, ["cuont"])
    assert result.exit_code == 2
    assert "did you mean count?" in result.stderr


def test_every_job_of_the_registry_is_there_and_has_its_name():
    for name in JOBS:
        job = load_job(name)
        assert job.name == name
        assert job.help.strip()
        assert fields_of(job.options)
        shown = CliRunner().invoke(command.spark, [name, "--help"]).output
        for each in fields_of(job.options):
            assert each.meaning.is_given or each.flag in shown
            if each.meaning.choices:
                assert f"[{'|'.join(each.meaning.choices)}]" in shown


def test_without_pyspark_the_command_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "kerolox.spark.jobs", None)
    monkeypatch.delattr("kerolox.spark.jobs", raising=False)
    result = CliRunner().invoke(command.spark, ["count"])
    assert "install kerolox[spark]" in str(result.exception)


def test_an_error_of_spark_is_told_without_the_places_in_java():
    text = (
        "An error occurred while calling o12.save.\n"
        ": org.apache.spark.SparkException: Job aborted: no space left\n"
        "\tat org.apache.spark.A.b(C.scala:1)\n"
        "Traceback (most recent call last):\n"
        '  File "x.py", line 1\n'
    )
    assert reason_of(Exception(text)).endswith("Job aborted: no space left")
    assert "scala" not in reason_of(Exception(text))
    of_ours = "Traceback\n  File x\nkerolox.errors.ConfigError: option topic is missing\n\n"
    assert reason_of(Exception(of_ours)) == "option topic is missing"
    within = (
        "[FAILED] Failed when reading: kerolox.errors.ConnectError: can't connect to a:1; is it "
        "running? SQLSTATE: 38000 SQLSTATE: XXKST\n=== Streaming Query ===\nIdentifier: 1"
    )
    assert reason_of(Exception(within)) == "can't connect to a:1; is it running?"
    assert reason_of(Exception("Traceback\nValueError: no\n")) == "ValueError: no"
    assert reason_of(ValueError()) == "ValueError"


@pytest.mark.parametrize("error", [ConfigError("x"), OSError(28, "x"), KeyboardInterrupt()])
def test_errors_that_are_for_people_stay_what_they_are(error):
    with pytest.raises(type(error)) as caught, clear_errors("the count stopped"):
        raise error
    assert caught.value is error


def test_an_error_of_spark_ends_a_job_with_its_reason_and_what_to_do():
    wanted = "the count stopped: ValueError: no; nothing was written; mend that and run it again"
    with pytest.raises(JobError, match=wanted), clear_errors("the count stopped"):
        raise RuntimeError("Traceback\nValueError: no\n")
