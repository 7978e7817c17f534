"""Which queues a push consumer owns: rebalance, locks, offsets, callbacks."""
