"""The process that carries one job on this machine.

A launch waits for it to start, so that everything here runs in a bare interpreter: the standard library
only and little of it, no `pathlib`, no `typing`, no `dataclasses`, nothing of `fray`. What the
launcher's side needs too (the status on disk, who a process is) it takes from here.
"""
