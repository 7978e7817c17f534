"""A gRPC server on the sockets, limits and TLS of remoting."""
