"""Messages of RocketMQ's gRPC service; to import :mod:`.messages` takes the extra ``grpc``."""
