"""The cluster as asyncio clients know it: name servers, routes, brokers, the client itself."""
