"""What a cluster consists of: brokers and clusters, as name servers know them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kerolox.admin.answers import Members, read_object
from kerolox.client.core.checking import checked
from kerolox.client.core.routes import MASTER_ID, BrokerAddresses
from kerolox.errors import ClientError, RemoteProtocolError
from kerolox.protocol.codes import RequestCode

if TYPE_CHECKING:
    from kerolox.client.aio.network.access import Access
    from kerolox.protocol.command import RemotingCommand


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """Brokers by name, and names of brokers by cluster; what is registered right now."""

    brokers: dict[str, BrokerAddresses]
    clusters: dict[str, tuple[str, ...]]

    def masters(self, cluster: str) -> list[str]:
        """The addresses of a cluster's masters, sorted by broker name.

        Raises:
            ClientError: there is no such cluster, or it has no master.
        """
        names = self.clusters.get(cluster)
        if names is None:
            known = ", ".join(sorted(self.clusters)) or "none is registered"
            raise ClientError(f"there is no cluster {cluster!r}; known: {known}")
        found = [self.brokers[name] for name in sorted(names) if name in self.brokers]
        masters = (broker.addresses.get(MASTER_ID) for broker in found)
        addresses = [address for address in masters if address]
        if not addresses:
            raise ClientError(f"no master of cluster {cluster!r} is registered")
        return addresses

    def only_cluster(self) -> str:
        """The name of the only cluster.

        Raises:
            ClientError: there is none, or several to choose from.
        """
        if not self.clusters:
            raise ClientError("no broker is registered at the name server; start one")
        if len(self.clusters) > 1:
            raise ClientError(f"there are several clusters, choose one: {', '.join(self.clusters)}")
        return next(iter(self.clusters))

    def nodes(self, cluster: str = "") -> list[BrokerAddresses]:
        """The brokers of a cluster with all their nodes, sorted by name; empty: of all clusters.

        Raises:
            ClientError: there is no such cluster.
        """
        if cluster and cluster not in self.clusters:
            self.masters(cluster)
        names = self.clusters[cluster] if cluster else self.brokers
        return [self.brokers[name] for name in sorted(names) if name in self.brokers]


@checked()
class ClusterRequests:
    """Asks about a whole cluster; every other class of requests is one of these."""

    @property
    def access(self) -> Access:
        """Its way to the cluster."""
        raise NotImplementedError

    async def cluster_info(self) -> ClusterInfo:
        """All brokers and clusters that the name server knows (code 106). Errors: see
        ``Access``.
        """
        response = await self.access.ask_name_server(RequestCode.GET_BROKER_CLUSTER_INFO)
        return await _read(response, "the name server")


async def cluster_info_from(access: Access, name_server: str) -> ClusterInfo:
    """The same, as this name server alone knows it. Errors: see ``Access``."""
    response = await access.ask(name_server, RequestCode.GET_BROKER_CLUSTER_INFO)
    return await _read(response, name_server)


async def _read(response: RemotingCommand, source: str) -> ClusterInfo:
    answer = await read_object(response, "the cluster info", source)
    brokers = {
        name: BrokerAddresses(name, item.text("cluster"), _addresses(item))
        for name, item in answer.table("brokerAddrTable").items()
    }
    table = answer.members("clusterAddrTable")
    clusters = {name: tuple(sorted(table.texts(name))) for name in answer.names("clusterAddrTable")}
    return ClusterInfo(brokers, clusters)


def _addresses(broker: Members) -> dict[int, str]:
    """Address by broker id."""
    try:
        found = {int(key): text for key, text in broker.text_table("brokerAddrs").items()}
    except ValueError as error:
        raise RemoteProtocolError(
            f"the cluster info has a broker id that is none: {error}"
        ) from None
    return dict(sorted(found.items()))
