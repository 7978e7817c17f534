"""``kerolox broker``: runs one, or has commands about brokers that run."""

from __future__ import annotations

from kerolox.cli.commands.brokers.retiring import retire_command, return_command
from kerolox.cli.commands.brokers.roles import demote_command, promote_command, role_command
from kerolox.cli.commands.brokers.settings import config
from kerolox.cli.commands.brokers.showing import describe_command, list_command
from kerolox.cli.commands.serve import broker as serve_broker
from kerolox.cli.commands.serving import serving_group

broker = serving_group(
    serve_broker, "broker", "Run a broker, or examine and change those of a cluster."
)

for _command in (
    list_command,
    describe_command,
    config,
    role_command,
    promote_command,
    demote_command,
    retire_command,
    return_command,
):
    broker.add_command(_command)
