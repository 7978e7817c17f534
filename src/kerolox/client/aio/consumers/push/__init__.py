"""The parts of a push consumer: queues that are ours, pulls, listeners, what is given back."""
