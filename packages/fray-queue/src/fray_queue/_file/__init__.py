"""FileQueue: a queue in a folder or an object store, without a server.

`queue` is the public class; `claims` decides which client has an item, by the records of `item_log` and
`records`; `listing` knows what is there; `producer` names new items; `cleanup` removes finished ones;
`stores` are the file systems, which `opening` checks before their first use.
"""
