"""Which classes Ray's copy of cloudpickle knows."""

import cloudpickle.cloudpickle
import ray.cloudpickle.cloudpickle

_BY_ID, _BY_CLASS = "_DYNAMIC_CLASS_TRACKER_BY_ID", "_DYNAMIC_CLASS_TRACKER_BY_CLASS"
_LOCK = "_DYNAMIC_CLASS_TRACKER_LOCK"


def share_class_ids() -> None:
    """Let a class that travels by value be one class in a process, whichever cloudpickle brings it.

    Read in Ray 2.60: cloudpickle gives such a class (of `__main__`, say) an id, by which a process recognizes
    it when it comes again, or comes back. Ray pickles arguments and results with a copy of cloudpickle that
    has ids of its own; functions and exceptions are pickled with the installed one. With two tables, a member
    of an enum that is an argument would not be the member of that name to which the function refers.
    """
    ours, rays = vars(cloudpickle.cloudpickle), vars(ray.cloudpickle.cloudpickle)
    if not all(name in tables for tables in (ours, rays) for name in (_BY_ID, _BY_CLASS, _LOCK)):
        return  # a version with other tables: each keeps its own, as without this function
    if ours[_BY_ID] is rays[_BY_ID]:
        return
    with ours[_LOCK], rays[_LOCK]:
        for class_id, known in rays[_BY_ID].items():
            ours[_BY_ID].setdefault(class_id, known)
        for known, class_id in rays[_BY_CLASS].items():
            ours[_BY_CLASS].setdefault(known, class_id)
        rays.update({name: ours[name] for name in (_BY_ID, _BY_CLASS, _LOCK)})
