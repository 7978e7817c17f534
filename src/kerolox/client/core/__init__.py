"""The decisions of the clients: no sockets, no tasks, no clock; time and randomness are arguments.

The asyncio clients, and through them the blocking ones, are shells around these modules.
"""
