"""`fray queue`: serve queues, and look into them."""

from fray_queue._cli.commands import queue as queue
