"""``kerolox up --brokers N``: several brokers of one machine, each a process of its own."""
