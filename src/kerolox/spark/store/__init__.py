"""Commit logs read from their files: the ``rocketmq-store`` format, and how jobs read logs."""
