"""Brokers that change their roles while they run: promotion and demotion.

``state`` decides and does no I/O. ``record`` is the file that outlives a restart. ``parts`` has the
parts of a broker do what its role asks for. ``fencing`` searches a newer master. ``forwarding``
holds and passes on what only a master answers. ``roles`` brings them together.
"""
