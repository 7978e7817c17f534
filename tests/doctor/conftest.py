from __future__ import annotations

from tests.support.servers.clusters import cluster, java_cluster, our_cluster

__all__ = ["cluster", "java_cluster", "our_cluster"]
