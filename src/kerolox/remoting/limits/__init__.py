"""What one client can cost a server: connections, memory, requests."""
