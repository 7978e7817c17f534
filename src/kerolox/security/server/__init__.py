"""TLS of servers: certificates, contexts, and what a handshake failed for."""
