"""What runs inside a task of Iris, around one replica, with the standard library alone.

In the environment that Iris has made for a task there need not be any Fray. So these files are sent along
with each job, as one archive that Python runs; nothing here imports anything but its neighbours.

Iris starts a task, ends it by SIGKILL, and keeps its exit code and the last line on its stderr. What a
replica of Fray is promised beside that is done here:

- SIGTERM, and time to save, before it ends: the folder `place_of` an attempt takes the word, from a command
  that Iris runs in the container (`exec_in_container`);
- an end of the whole tree, children with sessions of their own included;
- ranks, and where a gang meets; ports; a limit of time for each attempt;
- independent replicas end one by one: Iris ends all tasks of a job when one has failed for good, so a replica
  that has failed for good keeps its task until the others have ended.
"""
