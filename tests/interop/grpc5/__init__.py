"""Clients of RocketMQ 5 by gRPC: programs that they are driven by, and scenarios for all of them.

=============  ====================================================================================
``driver``     a program of a client, as a process that is told what to do line by line
``scenarios``  what a client does, and what comes of it; each runs with every client
``crossing``   messages of clients of 4.x and of 5.x
``calls``      calls that are wrong, and their codes
``servers``    our server, and RocketMQ's proxy 5.3.3 with a broker in its process
=============  ====================================================================================
"""
