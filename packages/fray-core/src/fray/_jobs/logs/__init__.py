"""The log of one attempt: segments of one text, and an index of times.

    replica-0.attempt-1.log                               from the first byte on
    replica-0.attempt-1.log.000000067108864               from that byte on
    replica-0.attempt-1.log.000000134217728.dropped       a line that says what is missing from that byte on
    replica-0.attempt-1.index                             "SECONDS OFFSET LINES", about one a second, from the
                                                          second second on

The name of a segment is its place in all that was written, so that `cat NAME.log*` shows the log in order,
a reader goes to any byte without looking at the others, and a segment in the middle can be deleted. A log of
version 0.1.0 is one segment without an index.

A replica writes to a pipe, which its supervisor copies into segments. A file that the replica wrote itself
would be faster by a copy (about a second of CPU per GB), but could neither be limited nor be cut while it is
written, and on a full disk the replica would fail. When a supervisor is killed the last lines in the pipe are
lost, and so is the replica, which ends with it.
"""
