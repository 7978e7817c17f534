"""TLS of servers, between a socket and its connection. Plain text never passes through it."""
