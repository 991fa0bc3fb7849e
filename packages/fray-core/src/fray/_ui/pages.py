"""What each address of `fray ui` answers."""

import asyncio
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from aiohttp import web

from fray._ui import shell
from fray._ui.answers import part_answer
from fray._ui.bodies import json_object
from fray._ui.job_page import about_part, job_part, look_at
from fray._ui.jobs_page import jobs_filter, jobs_part, place_choice
from fray._ui.listing import Query, WrongQueryError
from fray._ui.log_part import check_choice, log_form, log_lines, log_part
from fray._ui.markup import Html, stranger, tag
from fray._ui.queue_routes import QueueRoutes, QueueServer
from fray._ui.request_check import Handler, refusal
from fray._ui.shared_calls import DaemonThreads, Looked, SharedCalls
from fray._ui.usage_part import look_at_usage, usage_part
from fray._ui.watching import JobLists
from fray._values.threads import NoThreadError

if TYPE_CHECKING:
    from fray._contracts.cluster import Cluster
    from fray._values.job_states import JobInfo

Render = Callable[[], Html]
_AT_ONCE = 0.25  # seconds in which a page may show more than that it is loading
_GRACE = 10.0
_NO_ID = re.compile(r"(^|/)\.{0,2}(/|$)|[\x00-\x1f\x7f]")  # parts that lead elsewhere, controls
_MOST_LISTS = 8  # that are watched of a cluster: its jobs, and members of sweeps


@dataclass(frozen=True)
class WatchedCluster:
    """A cluster of the page, and what is known of it."""

    name: str
    cluster: "Cluster"
    calls: SharedCalls
    lists: OrderedDict[str, JobLists] = field(default_factory=OrderedDict)

    def jobs_of(self, parent: str) -> JobLists:
        """Return what looks at all jobs, or at those that one launched."""
        found = self.lists.setdefault(parent, JobLists(self.cluster, parent))
        self.lists.move_to_end(parent)
        while len(self.lists) > _MOST_LISTS:
            self.lists.popitem(last=False)
        return found

    def renew(self) -> None:
        """Look at everything again: something was changed."""
        for each in self.lists.values():
            each.renewed = True


class Pages:
    """The handlers of one server.

    Args:
        clusters: By the names that the page gives them; the first is shown where none is requested.
        queues: The servers of queues, by name.
    """

    def __init__(self, clusters: Mapping[str, "Cluster"], queues: Mapping[str, QueueServer]) -> None:
        self._clusters = {
            name: WatchedCluster(name, cluster, SharedCalls(f"fray-ui-{name}"))
            for name, cluster in clusters.items()
        }
        self._renderers = DaemonThreads("fray-ui-render", 2)
        self._links = (("./", "Jobs"), *((("queues", "Queues"),) if queues else ()))
        self._queues = QueueRoutes(queues, partial(self._around, list(queues)))

    def routes(self) -> Sequence[web.RouteDef]:
        """Return what answers each address."""
        parts: dict[str, Callable[[Query, float], Awaitable[Render]]] = {
            "jobs": self._jobs,
            "job": self._job,
            "usage": self._usage,
            "log": self._log,
            "about": self._about,
        }
        return [
            web.get("/healthz", _healthz),
            *(web.get(f"/{name}", partial(_asset, name)) for name in shell.ASSETS),
            web.get("/", self._page(self._jobs_page)),
            web.get("/job", self._page(self._job_page)),
            *(web.get(f"/part/{name}", self._part(look)) for name, look in parts.items()),
            web.post("/job/stop", self._stop),
            web.post("/job/retry", self._retry),
            *self._queues.routes(),
        ]

    def close(self) -> None:
        """Stop all requests."""
        for each in self._clusters.values():
            each.calls.close()
        self._renderers.close()
        self._queues.close()

    # --- requests to clusters ---

    def _of(self, name: str) -> WatchedCluster:
        if not name:
            return next(iter(self._clusters.values()))
        if name not in self._clusters:
            raise WrongQueryError(f"no cluster of this page is called {name[:100]!r}")
        return self._clusters[name]

    async def _jobs(self, query: Query, patience: float) -> Render:
        watched = self._of(query.text("cluster"))
        parent = _id_of(query) if query.text("id") else ""
        looked = await watched.calls.get(
            ("jobs", parent),
            watched.jobs_of(parent).look,
            patience=patience,
            is_part=lambda found: found.unread > 0,
        )
        return lambda: jobs_part(looked, query, what="members" if parent else "jobs")

    async def _job(self, query: Query, patience: float) -> Render:
        looked = await self._state_of(query, patience)
        return lambda: job_part(looked, query)

    async def _state_of(self, query: Query, patience: float) -> "Looked[JobInfo]":
        watched, job_id = self._of(query.text("cluster")), _id_of(query)
        return await watched.calls.get(
            ("job", job_id), lambda: watched.cluster.poll(job_id), max_age=0.5, patience=patience
        )

    async def _about(self, query: Query, patience: float) -> Render:
        watched, job_id = self._of(query.text("cluster")), _id_of(query)
        looked = await watched.calls.get(
            ("about", job_id), lambda: look_at(watched.cluster, job_id), patience=patience
        )
        return lambda: about_part(looked, query)

    async def _usage(self, query: Query, patience: float) -> Render:
        watched, job_id = self._of(query.text("cluster")), _id_of(query)
        looked = await watched.calls.get(
            ("usage", job_id), lambda: look_at_usage(watched.cluster, job_id), patience=patience
        )
        return lambda: usage_part(looked, query)

    async def _log(self, query: Query, patience: float) -> Render:
        watched, job_id = self._of(query.text("cluster")), _id_of(query)
        check_choice(query)
        key = ("log", job_id, query.text("replica"), query.text("grep"), query.text("lines"))
        looked = await watched.calls.get(
            key, lambda: log_lines(watched.cluster, query), max_age=0.5, patience=patience
        )
        return lambda: log_part(looked, query)

    # --- pages ---

    async def _jobs_page(self, query: Query) -> tuple[str, str, list[Html]]:
        first = await self._first(self._jobs, query)
        content = [tag("h1", "Jobs"), jobs_filter(query, "Filter"), shell.part("part/jobs", "Jobs", first)]
        return "Jobs", "./", content

    async def _job_page(self, query: Query) -> tuple[str, str, list[Html]]:
        job_id = _id_of(query)
        above = Query({}).link("./", cluster=query.text("cluster"))
        content = [
            tag("p", tag("a", "Jobs", href=above), " /", class_="path"),
            tag("h1", stranger(job_id)),
            shell.part("part/job", "Job", await self._first(self._job, query)),
        ]
        looked = await self._state_of(query, _AT_ONCE)
        if looked.value is not None and looked.value.is_sweep:
            members = await self._first(self._jobs, query)
            content += [
                tag("h2", "Members"),
                jobs_filter(query, "Filter"),
                shell.part("part/jobs", "Members", members),
            ]
        else:
            used = await self._first(self._usage, query)
            content += [tag("h2", "Memory and CPU"), shell.part("part/usage", "Usage", used)]
        lines, about = await self._first(self._log, query), await self._first(self._about, query)
        content += [
            tag("h2", "Log"),
            log_form(query),
            shell.part("part/log", "Log", lines),
            tag("h2", "About it"),
            shell.part("part/about", "About it", about),
        ]
        return job_id, "", content

    async def _first(self, look: Callable[[Query, float], Awaitable[Render]], query: Query) -> Html | None:
        """Return what a part of a page shows at first; None where that would take a while."""
        html = await self._rendered(await look(query, _AT_ONCE))
        return None if 'data-state="loading"' in html else html

    def _page(self, page: Callable[[Query], Awaitable[tuple[str, str, list[Html]]]]) -> Handler:
        async def handler(request: web.Request) -> web.StreamResponse:
            query = Query(request.query)
            title, current, content = await page(query)
            beside = place_choice("Clusters", "./", "cluster", list(self._clusters), query)
            written = shell.document(title, *content, links=self._links, current=current, beside=beside)
            return web.Response(text=written, content_type="text/html")

        return handler

    def _around(self, servers: Sequence[str], query: Query, current: str) -> dict[str, Any]:
        beside = place_choice("Servers", "queues", "server", servers, query)
        return {"links": self._links, "current": current, "beside": beside}

    def _part(self, look: Callable[[Query, float], Awaitable[Render]]) -> Handler:
        async def handler(request: web.Request) -> web.StreamResponse:
            html = await self._rendered(await look(Query(request.query), 5.0))
            return part_answer(html, request)

        return handler

    async def _rendered(self, render: Render) -> Html:
        """Make a part of a page in a thread, where it delays no other request; here where there is none."""
        try:
            made = self._renderers.submit(render)
        except NoThreadError:
            return render()
        return await asyncio.wrap_future(made)

    # --- what changes something ---

    async def _stop(self, request: web.Request) -> web.StreamResponse:
        watched, job_id = await self._asked(request)
        return await _done(
            watched, lambda: watched.cluster.terminate(job_id, grace=_GRACE), f"{job_id} was stopped"
        )

    async def _retry(self, request: web.Request) -> web.StreamResponse:
        watched, job_id = await self._asked(request)
        return await _done(watched, lambda: watched.cluster.retry(job_id), f"{job_id} runs again")

    async def _asked(self, request: web.Request) -> tuple[WatchedCluster, str]:
        body = await json_body(request, "id", "cluster")
        job_id = body.get("id", "")
        return self._of(body.get("cluster", "")), _checked_id(job_id)


async def _done(watched: WatchedCluster, call: Callable[[], Any], said: str) -> web.StreamResponse:
    try:
        await watched.calls.run(call)
    except Exception as error:  # noqa: BLE001 - the answer says what it is
        return refusal(409, f"{type(error).__name__}: {error}")
    finally:
        watched.renew()
    return web.json_response({"done": said})


async def json_body(request: web.Request, *fields: str) -> dict[str, str]:
    """Return the texts of a body.

    Raises:
        WrongQueryError: It is something else.
    """
    body = await json_object(request)
    if body is None or not all(
        key in fields and isinstance(value, str) and len(value) <= 1000 for key, value in body.items()
    ):
        raise WrongQueryError(f"the body is a JSON object of texts: {', '.join(fields)}")
    return body


def _id_of(query: Query) -> str:
    return _checked_id(query.text("id"))


def _checked_id(job_id: str) -> str:
    """Return an id as it could be one: a name, or names with slashes between them.

    Raises:
        WrongQueryError: It is none.
    """
    if not job_id:
        raise WrongQueryError("no id of a job was given: job?id=…")
    if _NO_ID.search(job_id):
        raise WrongQueryError(f"{job_id[:100]!r} is not the id of a job")
    return job_id


async def _healthz(_request: web.Request) -> web.StreamResponse:
    return web.Response(text="ok\n")


async def _asset(name: str, _request: web.Request) -> web.StreamResponse:
    return web.Response(body=shell.asset(name), content_type=shell.ASSETS[name], charset="utf-8")
