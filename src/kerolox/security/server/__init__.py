"""TLS of servers: certificates, contexts, reasons of failed handshakes."""
