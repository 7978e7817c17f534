"""TLS of servers, between a socket and its connection; a plain connection meets none of it."""
