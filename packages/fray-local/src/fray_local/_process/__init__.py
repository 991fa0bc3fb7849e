"""Tasks and actors in processes of this machine.

    the caller's process                                    a fork server of its own
    ProcessContext -> Fleet -> Channel ---- socket ------> worker: listener -> main thread
          |             |         ^                          |
       references     Crew       Hub, one thread <-----------+  results, items, requests
                    (actors)       reads everything, never blocks

References, dependencies, waiting and streams are those of `ThreadContext`; what differs is where a
call runs. The caller's process owns every reference; a task that runs tasks, gets or waits sends
requests there. Values travel as pickles; large ones lie in anonymous memory files whose descriptors
travel with them, so nothing has a name that could be left behind.
"""
