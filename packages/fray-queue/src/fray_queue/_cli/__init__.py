"""`fray queue`: serve queues, and look into them."""

from fray_queue._cli.group import queue as queue
