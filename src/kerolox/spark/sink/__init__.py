"""Writing to topics: ``df.write.format("rocketmq")`` and ``writeStream``."""
