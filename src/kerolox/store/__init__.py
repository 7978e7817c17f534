"""The files of a broker: commit log, consume queues, index, and what keeps them whole."""
