"""The server: queues by name, in a process of its own or of a program."""
