"""The client of a server's queues."""
