"""The options of jobs that ask a cluster, and what they are for ``format("rocketmq")``."""

from __future__ import annotations

from dataclasses import dataclass

from kerolox.security.credentials import Credentials
from kerolox.security.tls import TlsSettings
from kerolox.spark.jobs.frame.options import JobOptions, option

NAME_SERVER_DEFAULT = "127.0.0.1:9876"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions(JobOptions):
    """Name servers, account and TLS; the command has them as all commands do (``-n``)."""

    name_server: str = option(
        "name servers, host:port, several joined by ';'", default=NAME_SERVER_DEFAULT, is_given=True
    )
    credentials: Credentials | None = option(
        "account that requests are signed with", default=None, is_given=True
    )
    tls: bool | TlsSettings = option("encrypt connections", default=False, is_given=True)

    def source_options(self) -> dict[str, str]:
        """As ``format("rocketmq")`` takes them."""
        options = {"nameServer": self.name_server}
        if self.credentials is not None:
            options["accessKey"] = self.credentials.access_key
            options["secretKey"] = self.credentials.secret_key
            if self.credentials.security_token:
                options["securityToken"] = self.credentials.security_token
        if self.tls is True:
            options["tls"] = "true"
        elif isinstance(self.tls, TlsSettings):
            options |= _tls_options(self.tls)
        return options


def _tls_options(tls: TlsSettings) -> dict[str, str]:
    texts = {
        "tlsCaFile": tls.ca,
        "tlsCertificateFile": tls.certificate,
        "tlsKeyFile": tls.key,
        "tlsKeyPassword": tls.key_password,
    }
    options = {name: str(value) for name, value in texts.items() if value is not None}
    options["tlsVerify"] = str(tls.verify).lower()
    options["tlsCheckHostName"] = str(tls.check_host_name).lower()
    return {"tls": "true", **options}
