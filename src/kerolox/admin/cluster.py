"""What a cluster consists of: brokers and clusters, as name servers know them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kerolox.client.core.routes import MASTER_ID, BrokerAddresses
from kerolox.errors import ClientError, RemoteProtocolError
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.fastjson import items_of, loads, members_of

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
        value = members_of(loads(response.body))
        brokers = {
            str(name): _broker(str(name), members_of(item))
            for name, item in members_of(value.get("brokerAddrTable") or {}).items()
        }
        clusters = {
            str(name): tuple(sorted(map(str, items_of(names))))
            for name, names in members_of(value.get("clusterAddrTable") or {}).items()
        }
    except ValueError as error:
        raise RemoteProtocolError(f"cluster info has an unknown shape: {error}") from None
    return ClusterInfo(brokers, clusters)


def _broker(name: str, item: dict[object, object]) -> BrokerAddresses:
    addresses = members_of(item.get("brokerAddrs") or {}).items()
    return BrokerAddresses(
        name,
        str(item.get("cluster") or ""),
        {int(str(number)): str(address) for number, address in addresses},
    )
