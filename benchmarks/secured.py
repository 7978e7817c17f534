"""Claim: access control costs little, and TLS does not cost more than it costs the Java broker.

Sends of 128 B and 1 KiB, 4 connections with 64 open each, to the Java broker and to ours, in turn:
plain, signed for a broker with accounts, over TLS, and both. Prints medians with their ranges, our
rate and processor time as multiples of Java's in the same case, and what our own rate is of the
plain one.

    python benchmarks/secured.py [--passes 3] [--seconds 4] [--cases REGEX] [--shape 64x4]

Needs cargo, ``../shared``, and ``openssl`` for the certificate.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.against_java import fill_page_cache, text
from benchmarks.peers import CACHE, ROOT, Target, java_broker, our_broker

ACCESS_KEY, SECRET_KEY = "benchmark", "12345678"
ACCOUNTS = f"""\
accounts:
- accessKey: {ACCESS_KEY}
  secretKey: '{SECRET_KEY}'
  admin: false
  defaultTopicPerm: PUB|SUB
  defaultGroupPerm: SUB
- accessKey: somebodyelse
  secretKey: '87654321'
  topicPerms:
  - secured=DENY
"""
SIZES = (128, 1024)


class Case(NamedTuple):
    """How a message is sent, and to which of the brokers."""

    name: str
    broker: str
    options: tuple[str, ...]


SIGNED = ("--sign", f"{ACCESS_KEY}:{SECRET_KEY}")
CASES = (
    Case("plain", "open", ()),
    Case("accounts", "closed", SIGNED),
    Case("TLS", "open", ("--tls",)),
    Case("accounts and TLS", "closed", (*SIGNED, "--tls")),
)


def build_generator() -> Path:
    """Build the load generator of this benchmark."""
    crate, target = ROOT / "benchmarks" / "secured_load", CACHE / "secured_load"
    command = ["cargo", "build", "--release", "--quiet", "--target-dir", str(target)]
    subprocess.run(command, cwd=crate, check=True)
    return target / "release" / "secured_load"


def make_home(folder: Path) -> Path:
    """A ``ROCKETMQ_HOME`` with accounts, and TLS settings with a certificate of RSA 2048."""
    conf = folder / "conf"
    conf.mkdir(parents=True)
    (conf / "plain_acl.yml").write_text(ACCOUNTS)
    (conf / "logback_broker.xml").write_text("<configuration/>")
    key, certificate = conf / "server.key", conf / "server.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-subj", "/CN=localhost", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    (conf / "tls.properties").write_text(
        "tls.test.mode.enable=false\ntls.server.mode=permissive\n"
        f"tls.server.keyPath={key}\ntls.server.certPath={certificate}\n"
    )
    return folder


def send(generator: Path, target: Target, case: Case, options: list[str]) -> dict[str, float]:
    """One run's figures."""
    command = [str(generator), "--broker", target.address, "--pid", str(target.pid)]
    command += [*options, *case.options]
    run = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    codes = run["codes"]
    stored = codes.get("0", 0) / sum(codes.values())
    # The Java broker may refuse sends of a busy moment (its flow control); ours may not.
    if not stored or (stored < 1 and target.label != "java"):
        raise SystemExit(f"{target.label} answered {codes} to {case.name}")
    return {"rate": stored * run["messages_per_s"], "cpu_us": run["broker_cpu_us"] / stored}


Runs = dict[tuple[str, int], dict[str, list[dict[str, float]]]]


def measure(passes: int, cases: list[Case], options: list[str], folder: Path) -> Runs:
    """(case, size) to label to runs."""
    generator, home = build_generator(), make_home(folder / "home")
    tls = f"tls.config.file={home / 'conf' / 'tls.properties'}"
    jvm = f"-Drocketmq.home.dir={home} -D{tls}"
    runs: Runs = defaultdict(lambda: defaultdict(list))
    with ExitStack() as stack:
        targets: dict[str, list[Target]] = {case.broker: [] for case in cases}
        for broker, found in targets.items():
            acl = f"aclEnable={str(broker == 'closed').lower()}"
            java = java_broker(folder / f"java-{broker}", acl, options=jvm)
            ours = our_broker(folder / f"ours-{broker}", "native", acl, tls, home=home)
            found += [stack.enter_context(java), stack.enter_context(ours)]
        fill_page_cache(folder)
        for number in range(passes):
            for size in SIZES:
                for case in cases:
                    for target in targets[case.broker][:: -1 if number % 2 else 1]:
                        run = send(generator, target, case, ["--size", str(size), *options])
                        runs[case.name, size][target.label].append(run)
                        print(f"{number} {case.name} {size} {target.label} {run}", file=sys.stderr)
    return runs


def table(runs: Runs) -> list[str]:
    """A row for each case, size and figure."""
    rows = ["| case | bytes | figure | Java | Kerolox | to Java | to plain |", "|---" * 7 + "|"]
    for (name, size), found in runs.items():
        for figure in ("rate", "cpu_us"):
            java, ours = ([run[figure] for run in found[label]] for label in ("java", "native"))
            plain = [run[figure] for run in runs.get(("plain", size), {}).get("native", [])]
            ratios = [
                f"{statistics.median(ours) / statistics.median(other):.2f}" if other else "-"
                for other in (java, plain)
            ]
            cells = [name, str(size), figure, text(java), text(ours), *ratios]
            rows.append("| " + " | ".join(cells) + " |")
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--cases", default=".*", help="names to measure")
    parser.add_argument("--shape", default="64x4", help="open on each, times connections")
    chosen = parser.parse_args()
    inflight, _, connections = chosen.shape.partition("x")
    options = ["--seconds", str(chosen.seconds), "--inflight", inflight]
    options += ["--connections", connections]
    cases = [case for case in CASES if re.fullmatch(chosen.cases, case.name)]
    with tempfile.TemporaryDirectory(prefix="kerolox-bench-") as folder:
        runs = measure(chosen.passes, cases, options, Path(folder))
    print("\n".join(table(runs)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
