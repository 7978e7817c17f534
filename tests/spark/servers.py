"""Servers that tests end and start again, each a process."""

from __future__ import annotations

from tests.support.servers.command import Server
from tests.support.servers.settings import write_settings
from tests.support.servers.up import free_port


class Servers:
    """Two name servers and a broker, each a process."""

    def __init__(self, folder) -> None:
        self.port, self.ports = free_port(), [free_port(), free_port()]
        self.names = [
            Server(folder / f"n{n}", "namesrv", "--port", port, "--data", folder / f"names{n}")
            for n, port in enumerate(self.ports)
        ]
        conf = folder / "broker.conf"
        write_settings(conf, registerNameServerPeriod=10_000)
        arguments = ["--port", self.port, "-n", self.name_server, "--data", folder / "store"]
        self.broker = Server(folder / "b", "broker", *arguments, "-c", conf)
        self.all = [*self.names, self.broker]

    @property
    def name_server(self) -> str:
        return ";".join(f"127.0.0.1:{port}" for port in self.ports)

    def end(self, server: Server, how: str) -> None:
        if how == "stop":
            server.stop()
        else:
            server.process.kill()
            server.process.wait(10)
            server.ready_file.unlink(missing_ok=True)
