"""Tasks and actors in processes of this machine; the folder says in which process a line runs.

    owner/                       fork_server.py                worker/
    the program's own process    one process, one thread       a process for each worker slot and actor
    -------------------------    ---------------------------   ----------------------------------------
    Scheduler, ActorRegistry     forks workers, reports how    main thread: runs calls, in order
    EventLoop: one thread that   they ended, ends their        one thread per connection: takes in
    reads what workers send      process trees                 calls, cancellations and answers
         |                             |                                |
         +------ Unix sockets: protocol/ (messages, framing, values) ---+

`context.py` is the public face, in the owner. The owner holds every reference; a task that runs
tasks, gets or waits sends requests there. Values travel as pickles; large ones lie in anonymous
memory files whose descriptors travel with them, so nothing has a name that could be left behind.
`cli.py` is `fray actors`.
"""
