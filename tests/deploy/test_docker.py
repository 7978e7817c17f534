"""The image: its Dockerfile is linted, and what it copies, installs and runs is tried here."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.deploy.composed import DATA, DEPLOY, IMAGE_CONFIG, SHIFT
from tests.support.servers.command import Server

ROOT = DEPLOY.parent
DOCKERFILE = IMAGE_CONFIG / "Dockerfile"
HADOLINT = shutil.which("hadolint", path=str(Path(sys.executable).parent))


def instructions(path: Path = DOCKERFILE) -> list[tuple[str, str]]:
    """(name, the rest) of each, continued lines joined, in order."""
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    parts = [line.partition(" ") for line in joined.splitlines() if line.strip()]
    return [(name, rest.strip()) for name, _, rest in parts]


def last(name: str) -> str:
    """Of the stage that is shipped."""
    return [rest for each, rest in instructions() if each == name][-1]


def pins(path: Path) -> dict[str, str]:
    return dict(re.findall(r"^([\w.-]+)==(\S+)", path.read_text(), re.MULTILINE))


def test_hadolint_has_nothing_to_say_about_the_dockerfile() -> None:
    assert HADOLINT is not None, "install the packages of group dev"
    done = subprocess.run([HADOLINT, str(DOCKERFILE)], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_image_runs_as_nobody_and_ends_at_sigterm() -> None:
    stages = [rest for name, rest in instructions() if name == "FROM"]
    assert len(stages) == 3
    assert stages[-1].endswith("-slim-${DEBIAN} AS runtime")
    assert not any("--platform" in stage for stage in stages), "the kernel is the target's"
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", last("USER"))
    assert json.loads(last("ENTRYPOINT")) == ["kerolox"], "a shell would swallow the signal"
    assert last("STOPSIGNAL") == "SIGTERM"
    assert last("VOLUME") == DATA
    assert "kerolox-health" in last("HEALTHCHECK")


def test_what_the_image_copies_is_there_and_reaches_the_builder() -> None:
    ignored = (DOCKERFILE.parent / "Dockerfile.dockerignore").read_text().split()
    allowed = [ROOT / line.removeprefix("!") for line in ignored if line.startswith("!")]
    for name, rest in instructions():
        if name != "COPY" or "--from=" in rest:
            continue
        for source in rest.split()[:-1]:
            path = ROOT / source
            assert path.exists(), source
            assert any(path.is_relative_to(each) for each in allowed), f"{source} is ignored"


def test_the_packages_of_the_image_are_those_that_the_tests_have() -> None:
    image = pins(IMAGE_CONFIG / "requirements.txt")
    locked = pins(ROOT / "constraints.txt")
    assert {name: locked.get(name) for name in image} == image, "run make lock"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["console"], *extras["tls"], *extras["otel"]]
    wanted += [*extras["oidc"], *extras["schemas"], *extras["grpc"]]
    names = {re.split(r"[^\w.-]", each)[0].lower() for each in wanted}
    assert names <= image.keys()
    assert not {"pyspark", "pytest"} & image.keys()


def test_what_the_image_runs_by_default_starts(tmp_path: Path) -> None:
    host = "127.0.0.1"
    command = [
        each.replace(DATA, str(tmp_path / "data")).replace("*", host)
        for each in json.loads(last("CMD"))
    ]
    for role, at in (("broker", "-c"), ("namesrv", "--namesrv-config")):
        place = command.index(at) + 1
        assert command[place] == f"/etc/kerolox/{role}.conf"
        text = (IMAGE_CONFIG / f"{role}.conf").read_text().replace("=*", f"={host}")
        command[place] = str(tmp_path / f"{role}.conf")
        Path(command[place]).write_text(f"{text}metricsPromExporterPort=0\n")
    command += ["--port", "0", "--namesrv-port", "0"]
    with Server(tmp_path / "run", *command) as server:
        assert server.addresses.keys() == {"namesrv", "broker"}


@pytest.mark.parametrize("url", ["", f"http://127.0.0.1:{1 + SHIFT}/health/live"])
def test_the_health_check_fails_where_no_server_answers(url: str) -> None:
    code = (IMAGE_CONFIG / "health.py").read_text()
    for port in ("5557", "5558", "8089"):
        code = code.replace(port, "1")
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"KEROLOX_HEALTH": url, "http_proxy": "http://192.0.2.1:1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "refused" in done.stderr or "no role" in done.stderr
