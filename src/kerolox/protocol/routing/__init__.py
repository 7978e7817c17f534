"""Where the queues of topics are, and who of a group reads which."""
