"""Every example of README.md and docs/ works as it stands there."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from contextlib import ExitStack
from dataclasses import replace
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kerolox.broker.config import BrokerConfig
from tests.docs.examples import LANGUAGES, LIBRARIES, PAGES, ROOT, Block, blocks_of
from tests.schemas.server import RegistryServer
from tests.support.clients.spark import QUICK, spark_variables
from tests.support.eventually import wait_until
from tests.support.servers import forked
from tests.support.servers.forked_commands import forked_commands
from tests.support.servers.up import Up, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SECONDS_MAX = 900
NOTEBOOKS = sorted((ROOT / "docs").rglob("*.ipynb"))
AS_TYPED = ROOT / "README.md"
"""The page whose commands are interpreters of their own; elsewhere the fork server starts them."""
RUN_CELLS = Path(__file__).with_name("run_cells.py")
SESSION = f"""
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[2]").config(map={QUICK!r}).getOrCreate()
"""
"""What ``pyspark`` gives at its start."""


PLAIN = re.compile(r"""kerolox( +('[^'\\]*'|"[^"\\$`!]*"|[\w@%+=:,./-])+)+""")
"""A command line of ours in which a shell has nothing to do but to take quotes away."""

REGISTRY = "http://registry:8081"
"""Of pages whose examples ask a schema registry."""

OF_SPARK = ("spark", "lakehouse")
ELSEWHERE = (*OF_SPARK, "airflow", "notebook", "shell", "rocketmq")
"""Blocks that are not run with the others of their page."""
HAS_LAKEHOUSE = all(find_spec(name) is not None for name in ("deltalake", "pyiceberg"))


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def pages(*languages: str, needs: tuple[str, ...] = ("",)) -> list[Path]:
    """Those with such a block."""
    return [
        page
        for page in PAGES
        if any(each.language in languages and each.needs in needs for each in blocks_of(page))
    ]


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    with Up(tmp_path / "up") as server:
        yield server


@pytest.fixture
def examples() -> Iterator[ExitStack]:
    """What runs beside the examples of a page."""
    with ExitStack() as stack:
        yield stack


def environment_of(folder: Path, name_server: str) -> dict[str, str]:
    environment = {**os.environ, "NAMESRV_ADDR": name_server, "HOME": str(folder)}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    return environment


def run_python(code: str, folder: Path, name_server: str, *, fresh: bool) -> str:
    """Run a program in a folder of its own to a good end."""
    (folder / "example.txt").write_text(code)
    if fresh:
        return run([sys.executable, "example.txt"], folder, name_server)
    return run_forked("tests.docs.run_example", [folder, "example.txt"], folder, name_server)


def run(
    command: list[str], folder: Path, name_server: str, given: str = "", **variables: str
) -> str:
    """Run to a good end in a folder of its own, with a standard input; what it printed."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment_of(folder, name_server) | variables,
        input=given,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )
    assert done.returncode == 0, f"{command[-1]}\n{done.stdout}{done.stderr}"
    return done.stdout


def run_cells(cells: list[str], folder: Path, name_server: str, **variables: str) -> list[str]:
    """Run the cells of a notebook to a good end; what each of them gave."""
    command = [sys.executable, "-W", "ignore", str(RUN_CELLS)]
    text = json.dumps([cell.replace("127.0.0.1:9876", name_server) for cell in cells])
    given: list[str] = json.loads(run(command, folder, name_server, text, **variables))
    return given


def is_setup(line: str) -> bool:
    return line.startswith(("make ", "pip install ", "python -m venv "))


def check_setup(line: str) -> None:
    """A command that sets something up: its target or its extra is there; other tests run it."""
    first, *words = shlex.split(line, comments=True)
    if first == "make":
        assert re.search(rf"^{words[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), line
    for extras in re.findall(r"kerolox\[([^]]*)\]", line):
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        for extra in extras.split(","):
            assert extra in project["optional-dependencies"], line


def run_tests(code: str, folder: Path, server: Up) -> None:
    """Run an example that is a file of tests."""
    (folder / "test_example.py").write_text(code)
    # An environment that was set up before there was an entry point does not name the plugin.
    named = entry_points(group="pytest11", name="kerolox")
    plugin = [] if named else ["-p", "kerolox.pytest_plugin"]
    # The others need longer than the tests.
    others = [f"-pno:{name}" for name in ("asyncio", "cov", "hypothesispytest", "timeout", "xdist")]
    run_forked("pytest", ["-q", *others, *plugin, "test_example.py"], folder, server.namesrv)


def run_block(block: Block, folder: Path, server: Up, *, fresh: bool) -> str:
    """Run or check it; ``fresh``: each command is an interpreter of its own. What it printed."""
    code = block.code.replace("127.0.0.1:9876", server.namesrv)
    lines = [line for line in code.splitlines() if line]
    if block.needs == "save":
        (folder / block.file).write_text(code)
    elif block.needs == "pytest":
        run_tests(code, folder, server)
    elif block.language == "python":
        return run_python(code, folder, server.namesrv, fresh=fresh)
    elif block.language == "properties":
        (folder / "broker.conf").write_text(code)
        BrokerConfig.load(folder / "broker.conf")
    elif block.needs == "server":
        for line in lines:
            serve(line, folder, server, fresh=fresh)
    elif all(is_setup(line) for line in lines):
        for line in lines:
            check_setup(line)
    elif fresh:
        return run(["bash", "-euc", code], folder, server.namesrv)
    elif all(PLAIN.fullmatch(line) for line in lines):
        printed = (
            run_forked("kerolox.cli", shlex.split(line)[1:], folder, server.namesrv)
            for line in lines
        )
        return "".join(printed)
    else:
        path = environment_of(folder, server.namesrv)["PATH"]
        with forked_commands(path) as variables:
            return run(["bash", "-euc", code], folder, server.namesrv, **variables)
    return ""


def masked(text: str) -> list[str]:
    """The lines of what a command prints, without what is another each time: ids, times, numbers,
    queues of a broker that is called as its machine, and how wide a column is."""
    text = re.sub(r"\b[0-9A-F]{16,}\b", "ID", text)
    text = re.sub(r"[\w.-]+/\d+(@\d+)?", "QUEUE", text)
    text = re.sub(r"\d+([.,:]\d+)*", "0", text)
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def check_printed(block: Block, printed: str) -> None:
    """The lines that a page shows were printed, in that order."""
    lines = iter(masked(printed))
    missing = [line for line in masked(block.code) if line not in lines]
    assert not missing, f"{missing} is not printed, or not there:\n{printed}"


def run_forked(module: str, arguments: Sequence[object], folder: Path, name_server: str) -> str:
    """Run a module to a good end in a folder of its own; what it printed."""
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    environment = environment_of(folder, name_server)
    files = {"cwd": folder, "text": True, **pipes}
    with forked.start(module, arguments, environment, **files) as process:
        try:
            output, _ = process.communicate(timeout=SECONDS_MAX)
        except BaseException:
            process.kill()
            raise
    assert process.returncode == 0, f"{module} {arguments}\n{output}"
    return str(output)


def serve(line: str, folder: Path, server: Up, *, fresh: bool) -> None:
    """Start a server with the command of an example, on other ports; stop it when it is ready."""
    program, role, *words = shlex.split(line, comments=True)
    assert program == "kerolox"
    ready = folder / "ready"
    added = ["--port", free_port(), "--ready-file", ready]
    if role != "console":  # which keeps its files below the home folder
        added += ["--data", folder / f"data-{role}"]
    if role == "up":
        added += ["--namesrv-port", free_port()]
    command = [role, *words, *map(str, added)]
    of_clients = environment_of(folder, server.namesrv)
    environment = of_clients if role == "console" else dict(os.environ)
    with (folder / "log").open("w") as log:
        files = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log, "cwd": folder}
        process = forked.start("kerolox.cli", command, environment, fresh=fresh, **files)
    try:
        wait_until(lambda: ready.exists() or process.poll() is not None, what=line)
    finally:
        process.terminate()
        status = process.wait(SECONDS_MAX)
    assert status == 0, (folder / "log").read_text()


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "page",
    pages("python", "sh", "properties", needs=("", "notebook", "pytest", *LIBRARIES)),
    ids=name_of,
)
def test_the_examples_of_a_page_run_in_order(
    page: Path, up: Up, tmp_path: Path, examples: ExitStack
) -> None:
    (tmp_path / "store").symlink_to(up.data / "store")
    cells = [block.code for block in blocks_of(page) if block.needs == "notebook"]
    if cells:
        run_cells(cells, tmp_path, up.namesrv)
    blocks = blocks_of(page)
    if REGISTRY in page.read_text():
        address = examples.enter_context(RegistryServer()).address
        blocks = [replace(each, code=each.code.replace(REGISTRY, address)) for each in blocks]
    printed = ""
    for block in blocks:
        if block.needs == "printed":
            check_printed(block, printed)
        elif block.needs not in ELSEWHERE and block.language in {
            "python",
            "sh",
            "properties",
        }:
            printed = run_block(block, tmp_path, up, fresh=page == AS_TYPED)


def test_a_page_that_shows_what_is_not_printed_fails() -> None:
    printed = "GROUP   LAG\nbilling  12\nSEND_OK msgId=7F0000010D3A1B2C3D4E5F6A7B8C9D0E in 1.5 s\n"
    shown = "GROUP  LAG\nbilling  3\nSEND_OK msgId=00000000000000000000000000000000 in 20 s\n"
    check_printed(Block("text", "printed", shown), printed)
    with pytest.raises(AssertionError, match="mailer 0"):
        check_printed(Block("text", "printed", "GROUP  LAG\nmailer  3\n"), printed)
    with pytest.raises(AssertionError, match="GROUP LAG"):
        check_printed(Block("text", "printed", "billing 1\nGROUP LAG\n"), printed)


EXAMPLES = "examples of pages"


def cells_of(notebook: Path) -> list[dict[str, Any]]:
    """Those with code."""
    cells = json.loads(notebook.read_text())["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


@pytest.fixture(scope="module")
def printed_by_spark(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What Spark's examples printed, those of pages as one cell, and each cell of each notebook.

    All run in one process: half of the time of one alone is Spark's start.
    """
    folder = tmp_path_factory.mktemp("spark")
    needs = OF_SPARK if HAS_LAKEHOUSE else OF_SPARK[:1]
    examples = []
    for page in pages("python", needs=needs):
        examples.append(f"print({name_of(page)!r})")
        examples += [each.code for each in blocks_of(page) if each.needs in needs]
    parts = {EXAMPLES: ["\n".join(examples)]}
    for notebook in NOTEBOOKS:
        parts[name_of(notebook)] = ["".join(cell["source"]) for cell in cells_of(notebook)]
    # The session of a notebook's first cell is then one that is there.
    cells = [cell for part in parts.values() for cell in (SESSION, *part)]
    with Up(folder / "up") as up:
        (folder / "store").symlink_to(up.data / "store")
        run(["kerolox", "topic", "create", "Orders"], folder, up.namesrv)
        run(["kerolox", "send", "Orders", "hello", "--tags", "new"], folder, up.namesrv)
        given = iter(run_cells(cells, folder, up.namesrv, **spark_variables()))
    return {name: [next(given) for _ in (SESSION, *part)][1:] for name, part in parts.items()}


@pytest.mark.spark
@pytest.mark.xdist_group("docs-spark")
@pytest.mark.timeout(1200)
def test_the_spark_examples_run_in_one_session(printed_by_spark: dict[str, list[str]]) -> None:
    [printed] = printed_by_spark[EXAMPLES]
    assert "hello" in printed
    assert "order 1001: 20.0 by card" in printed
    assert "order 1002 is billed with 5.5" in printed
    if HAS_LAKEHOUSE:
        assert ": 2 orders, revenue 25.5" in printed
        assert "order 1001 is shipped" in printed
        assert "order 1002 is placed" in printed


@pytest.mark.parametrize("page", NOTEBOOKS, ids=name_of)
def test_a_notebook_says_nothing_of_a_machine(page: Path) -> None:
    notebook = json.loads(page.read_text())
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert set(notebook["metadata"]) == {"kernelspec", "language_info"}
    names = [cell["id"] for cell in notebook["cells"]]
    assert len(set(names)) == len(names)
    for cell in notebook["cells"]:
        assert cell["metadata"] == {}
        if cell["cell_type"] == "code":
            assert cell["execution_count"] is None


@pytest.mark.spark
@pytest.mark.xdist_group("docs-spark")
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("page", NOTEBOOKS, ids=name_of)
def test_the_cells_of_a_notebook_give_what_it_shows(
    page: Path, printed_by_spark: dict[str, list[str]]
) -> None:
    shown = [
        "".join(line for out in cell["outputs"] for line in out["text"]) for cell in cells_of(page)
    ]
    assert printed_by_spark[name_of(page)] == shown


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_each_block_has_a_language_that_is_run_or_shown(page: Path) -> None:
    assert {block.language for block in blocks_of(page)} <= LANGUAGES
