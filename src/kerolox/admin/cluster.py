"""What a cluster consists of: brokers and clusters, as name servers know them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kerolox.client.core.routes import MASTER_ID, BrokerAddresses
from kerolox.errors import ClientError, RemoteProtocolError
from kerolox.protocol import fastjson
from kerolox.protocol.codes import RequestCode

if TYPE_CHECKING:
    from kerolox.client.aio.network.access import Access


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
        found = [self.brokers[name].addresses.get(MASTER_ID) for name in sorted(names)]
        addresses = [address for address in found if address]
        if not addresses:
            raise ClientError(f"no master of cluster {cluster!r} is registered")
        return addresses


async def cluster_info(access: Access) -> ClusterInfo:
    """All brokers and clusters that the name server knows (code 106). Errors: see ``Access``."""
    response = await access.ask_name_server(RequestCode.GET_BROKER_CLUSTER_INFO)
    try:
        value = fastjson.loads(response.body)
        brokers = {
            str(name): BrokerAddresses(
                str(name),
                str(item.get("cluster") or ""),
                {int(i): str(a) for i, a in (item.get("brokerAddrs") or {}).items()},
            )
            for name, item in (value.get("brokerAddrTable") or {}).items()
        }
        clusters = {
            str(name): tuple(sorted(map(str, names)))
            for name, names in (value.get("clusterAddrTable") or {}).items()
        }
    except (fastjson.FastjsonError, AttributeError, TypeError, ValueError) as error:
        raise RemoteProtocolError(f"cluster info has an unknown shape: {error}") from None
    return ClusterInfo(brokers, clusters)
