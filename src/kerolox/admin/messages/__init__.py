"""Messages: find them, read queues, follow what became of them, send some and time that."""
