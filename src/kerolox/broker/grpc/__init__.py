"""The port for clients of RocketMQ 5: the gRPC service over the broker's own requests.

Nothing of it is imported unless ``grpcServerPort`` is set.
"""
