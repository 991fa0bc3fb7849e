"""The server's routes, and what each reads."""

from dataclasses import dataclass

JSON, RECORDS, TEXT, HTML = "application/json", "application/octet-stream", "text/plain", "text/html"


@dataclass(frozen=True, slots=True)
class Route:
    """One route. `handler` is a method of `Api`; `takes` is the media type of the body."""

    method: str
    path: str
    handler: str
    summary: str
    takes: str | None = None
    fields: tuple[str, ...] = ()  # of a JSON body
    changes: bool = False  # whether a repeated request has to be recognised


_QUEUE = "/queues/{name}"
ROUTES = (
    Route("GET", "/", "page", "A page for people."),
    Route("GET", "/queue", "queue_page", "The page of one queue."),
    Route("GET", "/part/queues", "queues_part", "What the page lists."),
    Route("GET", "/part/queue", "queue_part", "Counts of a queue, on its page."),
    Route("GET", "/part/letters", "letters_part", "Dead letters of one queue, on its page."),
    Route("GET", "/page.css", "page_css", "The page's style."),
    Route("GET", "/page.js", "page_js", "The page's script."),
    Route("GET", "/icon.svg", "icon_svg", "The page's icon."),
    Route("GET", "/healthz", "healthz", "Whether the server runs."),
    Route("GET", "/metrics", "metrics", "Counters in Prometheus's text format."),
    Route(
        "GET",
        "/queues",
        "list_queues",
        "All queues with their counts and rates; with a `limit` a page of those that are wanted.",
    ),
    Route("GET", _QUEUE, "stats", "One queue's counts and rates."),
    Route(
        "PUT",
        _QUEUE,
        "create",
        "Make a queue, or confirm its settings.",
        takes=JSON,
        fields=("max_attempts", "max_size", "max_dead"),
        changes=True,
    ),
    Route("DELETE", _QUEUE, "delete", "Remove a queue with all that is in it.", changes=True),
    Route(
        "POST",
        _QUEUE + "/push",
        "push",
        "Store items; each record has an `id`.",
        takes=RECORDS,
        changes=True,
    ),
    Route(
        "POST",
        _QUEUE + "/submit",
        "submit",
        "Store items with options, which the first record has as `options`; answers the items' ids.",
        takes=RECORDS,
        changes=True,
    ),
    Route(
        "POST",
        _QUEUE + "/room",
        "room",
        "Wait until a queue with a `max_size` has room for so many items.",
        takes=JSON,
        fields=("count", "wait"),
    ),
    Route(
        "POST",
        _QUEUE + "/replies",
        "replies",
        "What became of items, of those where it is known; waits for the first.",
        takes=JSON,
        fields=("item_ids", "wait"),
    ),
    Route(
        "POST",
        _QUEUE + "/pop",
        "pop",
        "Lease items.",
        takes=JSON,
        fields=("n", "lease_timeout", "wait"),
        changes=True,
    ),
    Route(
        "POST",
        _QUEUE + "/withdraw",
        "withdraw",
        "End a pop whose answer nobody waits for, named as its `Fray-Request` was; what it leased goes back.",
        takes=JSON,
        fields=("request",),
    ),
    Route("GET", _QUEUE + "/peek", "peek", "The item that a pop would lease."),
    Route(
        "POST",
        _QUEUE + "/done",
        "done",
        "Finish leased items; answers the leases that are not good.",
        takes=JSON,
        fields=("leases",),
        changes=True,
    ),
    Route(
        "POST",
        _QUEUE + "/finish",
        "finish",
        "Finish leased items; a record with an `outcome` is an answer. Answers the leases that are not good.",
        takes=RECORDS,
        changes=True,
    ),
    Route(
        "POST",
        _QUEUE + "/release",
        "release",
        "Give an item back.",
        takes=JSON,
        fields=("item_id", "lease_id", "delay", "error", "reason", "failure"),
        changes=True,
    ),
    Route(
        "POST",
        _QUEUE + "/extend",
        "extend",
        "Hold an item longer.",
        takes=JSON,
        fields=("item_id", "lease_id", "lease_timeout"),
        changes=True,
    ),
    Route(
        "POST",
        _QUEUE + "/extend_many",
        "extend_many",
        "Hold items longer; answers each lease's new end, null for one that is not good.",
        takes=JSON,
        fields=("leases", "lease_timeout"),
        changes=True,
    ),
    Route(
        "POST",
        _QUEUE + "/give_back",
        "give_back",
        "Give back items that were not worked on: their attempts do not count.",
        takes=JSON,
        fields=("leases",),
        changes=True,
    ),
    Route(
        "GET",
        _QUEUE + "/dead",
        "dead",
        "The dead letters, without what they hold; with a `limit` so many behind a `place`.",
    ),
    Route(
        "GET",
        _QUEUE + "/dead/records",
        "dead_records",
        "The dead letters, as many as one answer holds; each says its `place`, and whether there are `more`.",
    ),
    Route(
        "POST",
        _QUEUE + "/requeue",
        "requeue",
        "Bring dead letters back.",
        takes=JSON,
        fields=("item_ids",),
        changes=True,
    ),
    Route(
        "POST",
        _QUEUE + "/purge",
        "purge",
        "Remove items, or dead letters.",
        takes=JSON,
        fields=("dead", "item_ids"),
        changes=True,
    ),
)
