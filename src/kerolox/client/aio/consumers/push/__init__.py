"""The parts of a push consumer: its queues, pulls, listeners, retries."""
