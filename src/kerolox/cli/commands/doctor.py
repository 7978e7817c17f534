"""``kerolox doctor``: what is wrong with a cluster, and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from kerolox.cli.cluster_options import name_server_option, seconds_option
from kerolox.cli.connecting import on_cluster, security
from kerolox.cli.grouping import Command
from kerolox.cli.output import Shade, output_option, print_cells, print_line
from kerolox.cli.rows import Column, is_text, show_rows

if TYPE_CHECKING:
    from kerolox.doctor import Finding

EXIT_FINDINGS = 1


@click.command(cls=Command)
@click.option(
    "--config",
    "config_files",
    multiple=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="A broker.conf to examine, too; may be repeated.",
)
@click.option(
    "--broker",
    "brokers",
    multiple=True,
    metavar="HOST:PORT",
    help="A broker to examine although no name server may know it; may be repeated.",
)
@click.option(
    "--controller",
    "controllers",
    multiple=True,
    metavar="HOST:PORT",
    help="A controller to examine beside those that brokers name; may be repeated.",
)
@click.option(
    "--offline", is_flag=True, help="Examine the files of --config alone, and no cluster."
)
@seconds_option(
    "--between-looks",
    "What changes is examined twice, with so much time between.",
    least=0.1,
    most=600,
    default=3.0,
)
@seconds_option(
    "--stuck-after", "A queue whose next message has waited for so long stands still.", default=60.0
)
@seconds_option("--timeout", "Time limit of each request.", least=0.1, most=60, default=5.0)
@output_option
@name_server_option
def doctor(
    config_files: tuple[Path, ...],
    brokers: tuple[str, ...],
    controllers: tuple[str, ...],
    offline: bool,
    between_looks_seconds: float,
    stuck_after_seconds: float,
    timeout_seconds: float,
    output: str,
    name_server: str,
) -> int:
    """Diagnose a cluster along the path that a client takes: what is wrong, and what to do.

    Names, ports, TLS, accounts, name servers, advertised addresses, versions, clocks, disks, limits
    of this machine, settings, replication, groups. Nothing is changed. Exit code: 0 it is well, 1
    something was found.

    \b
    kerolox doctor -n 'names-1:9876;names-2:9876'
    kerolox doctor --config broker.conf --offline
    kerolox doctor -o '{severity} {code} {where}: {advice}'
    """
    from kerolox.admin import Admin
    from kerolox.doctor import ProbeOptions, Severity, check_settings, diagnose, worst_first
    from kerolox.security.tls import context_of

    if offline and not config_files:
        raise click.UsageError("--offline examines files alone; name one with --config.")
    findings: list[Finding] = []
    if not offline:
        credentials, tls = security()
        options = ProbeOptions(
            tls=context_of(tls),
            signs=credentials is not None,
            brokers=brokers,
            controllers=controllers,
            between_looks_seconds=between_looks_seconds,
            stuck_after_ms=int(stuck_after_seconds * 1000),
        )

        async def work(admin: Admin) -> list[Finding]:
            patient = Admin.on(admin.access)
            patient.timeout_seconds = timeout_seconds
            return await diagnose(patient, options, config_files)

        # What connections log of servers that are ill is what the findings say.
        findings += on_cluster(name_server, work, log_level="error", doing="examining the cluster")
    else:
        for path in config_files:
            findings += check_settings(path)
    findings = worst_first(findings)
    show_findings(findings, output)
    is_ill = any(each.severity > Severity.NOTE for each in findings)
    if not is_ill and is_text(output):
        said = "nothing else is wrong" if findings else "nothing is wrong"
        print_line(said, shade=Shade.GOOD)
    return EXIT_FINDINGS if is_ill else 0


def show_findings(findings: list[Finding], output: str) -> None:
    """Print what is wrong: for people where, what and what to do, each on its line."""
    if not is_text(output):
        rows = [
            {
                "severity": each.severity.name.lower(),
                "code": each.code,
                "where": each.where,
                "what": each.what,
                "advice": each.advice,
            }
            for each in findings
        ]
        names = ("severity", "code", "where", "what", "advice")
        show_rows(rows, [Column(name, name.upper()) for name in names], output)
        return
    for each in findings:
        severity = each.severity.name
        said = f"{severity.lower():7}  "
        print_cells([(said, Shade[severity]), (f"{each.code}  {each.where}", None)])
        print_line(f"         {each.what}")
        print_line(f"         → {each.advice}")
