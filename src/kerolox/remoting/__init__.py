"""The only place that owns sockets."""
