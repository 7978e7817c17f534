"""What operators ask of a cluster, as typed asyncio functions on a remoting client.

::

    async with RemotingClient() as client:
        cluster = Access(client, ("127.0.0.1:9876",))
        await create_topic(cluster, "Orders", queues=8)
        print(await describe_topic(cluster, "Orders"))
"""

from kerolox.admin.cluster import ClusterInfo, cluster_info
from kerolox.admin.topic_update import TopicChange, update_topic
from kerolox.admin.topics import (
    QueueStatus,
    TopicDescription,
    create_topic,
    delete_topic,
    describe_route,
    describe_topic,
    is_internal_topic,
    list_topics,
    topic_settings,
)
from kerolox.client.aio.network.access import Access

__all__ = [
    "Access",
    "ClusterInfo",
    "QueueStatus",
    "TopicChange",
    "TopicDescription",
    "cluster_info",
    "create_topic",
    "delete_topic",
    "describe_route",
    "describe_topic",
    "is_internal_topic",
    "list_topics",
    "topic_settings",
    "update_topic",
]
