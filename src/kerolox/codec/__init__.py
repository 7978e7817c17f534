"""What clients encode and decode for each message, in Python and native, equal to the byte.

The slow path (:class:`kerolox.protocol.command.RemotingCommand`) is complete. A codec is faster
for what fits it, and free to decline all else: its caller takes the slow path then.
``choice.py`` and ``messages.py`` say whose codec a process uses, by the rule of the kernel.
"""
