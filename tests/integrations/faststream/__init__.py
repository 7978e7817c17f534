"""The broker for FastStream: its own base tests, in memory and on a real broker, and ours."""
