"""What asyncio clients know of a cluster: name servers, routes, brokers, and who the client is."""
