"""The rules of supervision: pure, without a process, a file or a clock; a supervisor or a backend calls them.

Events go in, actions come out. The machine on top of them is `fray._jobs.supervision`.
"""
