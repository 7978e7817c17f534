"""The broker: what may be sent, read, held, retried and delayed, and who is connected."""
