"""HTTP/2 of a server, as far as gRPC needs it: decisions and bytes, no I/O (RFC 9113)."""
