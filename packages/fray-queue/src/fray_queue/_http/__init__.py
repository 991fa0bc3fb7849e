"""Queues on a server: what goes over the wire, the client, the server and its page."""
