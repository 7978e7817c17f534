"""How long others wait for an answer while somebody is hostile, on both kernels, on any machine.

    python benchmarks/abuse.py [a part of a scenario's name ...]

Plays each scenario of ``tests/abuse/scenarios.py`` beside a probe, and prints a line for each: of
the probe's answers the median, the 99th percentile and the slowest in milliseconds of the
server's own time, which is the clock less what the machine took
(``tests/support/servers/probe.py``), and by how many MiB the server grew. Others are to be served
within 100 ms.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.abuse.conftest import SETTINGS
from tests.abuse.scenarios import SCENARIOS
from tests.support.kernels import KERNELS
from tests.support.servers.probe import Probe, Seen
from tests.support.servers.up import Up

SERVED_MS_MAX = 100.0


def main() -> None:
    wanted = sys.argv[1:]
    print(f"{'':<48}{'median':>9}{'99 %':>9}{'slowest':>9} ms{'late':>6}{'grown':>7} MiB")
    for kernel in KERNELS:
        for name, scenario in SCENARIOS.items():
            if wanted and not any(part in name for part in wanted):
                continue
            with (
                tempfile.TemporaryDirectory() as folder,
                Up(Path(folder), settings=SETTINGS, kernel=kernel) as up,
            ):
                with Probe(up) as probe:
                    scenario.play(up)
                assert probe.seen is not None
                print(f"{kernel + ' ' + name:<48}{described(probe.seen)}", flush=True)


def described(seen: Seen) -> str:
    """The figures of one scenario."""
    if seen.wrong:
        return f" {seen.wrong}"
    served = sorted(answer[2] for answer in seen.answers)
    late = sum(each > SERVED_MS_MAX for each in served)
    figures = (served[len(served) // 2], served[len(served) * 99 // 100], served[-1])
    times = "".join(f"{each:9.1f}" for each in figures)
    return f"{times}   {late:>6}{seen.grown_mib:7.0f}"


if __name__ == "__main__":
    main()
