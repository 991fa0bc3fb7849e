"""The processes that run a job on its host: a guardian, and its child the supervisor.

    command -> boot, the guardian        -> guardian, when the supervisor was killed
                 -> start, its child     -> supervisor, or sweep_coordinator for a sweep

How another process ends a job, whatever state these are in: `stopping`.
"""
