"""The job runtime that clusters stand on. A package imports only those below it, whatever process runs it:

clusters     launch, list, follow, retry: what clusters derive from     the process that calls a cluster
supervisor   guardian, supervisor, coordinator of a sweep               processes of a job, on its host
replica      endpoints, the notice of a preemption                      the process of a replica
logs         the log of an attempt, written and read                    supervisor, readers
records      the folder of a job, its lock, its control pipe            launcher, supervisor, readers
plans        a request as what is to be run; source and environment     launcher; read by the supervisor
processes    start, limit and measure processes of this host            supervisor, guardian, backends
rules        supervision, pure: events in, actions out                  supervisor, backends

Four mechanisms that all clusters name are modules beside them: `supervision` (the machine on `rules`),
`ranks` (the variables of a gang's members, pure as well), `process_tree` (the end of all processes of a job,
on `processes`) and `runner` (run by its path, as the process of a replica).

No `__init__` imports anything: a supervisor starts with as few modules as it needs.
"""
