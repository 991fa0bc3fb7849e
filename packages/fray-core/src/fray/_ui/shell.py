"""What all pages have in common: the document around them, and how loading, empty and failed look."""

import json
import time
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

from fray._ui.markup import NOTHING, Html, tag
from fray._ui.shared_calls import Looked

HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
}
"""Of every answer to a browser: it runs no script but the page's own, and sends requests to no other host."""

ASSETS: Mapping[str, str] = {
    "page.css": "text/css",
    "page.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
"""The files of every page, and what they are."""


@cache
def asset(name: str) -> bytes:
    """Return a file of the page."""
    return resources.files("fray").joinpath("_ui", "static", name).read_bytes()


def document(
    title: str,
    *content: Html,
    links: Sequence[tuple[str, str]],
    current: str,
    beside: Html = NOTHING,
) -> str:
    """Return a whole page.

    Args:
        links: To the other pages: address and title.
        current: The address of this one among them.
        beside: What stands behind the links.
    """
    pages = [
        tag("a", each, href=href, aria_current="page" if href == current else None) for href, each in links
    ]
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"{title} - Fray"),
        tag("link", rel="icon", href="icon.svg"),
        tag("link", rel="stylesheet", href="page.css"),
        Html('<script src="page.js" defer></script>'),
    )
    top = tag(
        "header",
        tag("strong", "Fray", class_="brand"),
        tag("nav", *pages, aria_label="Pages"),
        beside,
        tag("p", id="state", role="status"),
    )
    notice = tag("div", id="notice", role="status"), tag("div", id="problem", role="alert")
    body = tag(
        "body",
        tag("a", "Skip to content", href="#main", class_="skip"),
        top,
        tag("main", *notice, *content, id="main", tabindex="-1"),
        _confirmation(),
    )
    return f'<!doctype html>\n<html lang="en">{head}{body}</html>\n'


def part(address: str, label: str, content: Html | None = None) -> Html:
    """Return a part of a page that the script keeps fresh.

    Args:
        address: What answers it; the script adds what stands behind the `?` of the page.
        content: What it shows at first; None where that is not known yet.
    """
    busy = content is None
    return tag(
        "section",
        loading(label) if content is None else content,
        data_part=address,
        aria_label=label,
        aria_busy="true" if busy else "false",
    )


def loading(what: str) -> Html:
    """Return a note that nothing is known yet."""
    shown = tag("span", class_="spinner", aria_hidden="true"), f" Loading {what.lower()}…"
    return tag("p", *shown, class_="loading", data_state="loading")


def more_loading(said: str) -> Html:
    """Return a note that what is shown is not yet all."""
    shown = tag("span", class_="spinner", aria_hidden="true"), f" {said}"
    return tag("p", *shown, class_="loading", data_state="part")


def empty(*said: Html | str) -> Html:
    """Return a note that there is nothing."""
    return tag("p", *said, class_="empty", data_state="empty")


def failure(looked: Looked[Any], what: str) -> Html:
    """Return a note why something could not be read, and how old the data is; empty where it could."""
    if looked.error is None:
        return NOTHING
    kind = type(looked.error).__name__
    old = ""
    if looked.at is not None:
        old = f" What is below is {max(0.0, time.time() - looked.at):.0f} s old."
    told = tag("strong", f"The {what} cannot be read."), f" {kind}: {looked.error}", tag("span", old)
    return tag("div", *told, class_="failure", data_state="failed")


def action(
    title: str,
    address: str,
    body: Mapping[str, Any],
    question: str,
    *,
    danger: bool = False,
    label: str | None = None,
    key: str | None = None,
) -> Html:
    """Return a button that does something after it was confirmed.

    Args:
        question: The text of the confirmation.
        label: What it is called where its title alone does not say what it is about.
        key: What stays the same when it becomes another button, so that the focus stays on it.
    """
    return tag(
        "button",
        title,
        type="button",
        class_="danger" if danger else None,
        data_act=address,
        data_body=json.dumps(body),
        data_ask=question,
        data_key=key or f"{address} {json.dumps(body)}",
        aria_label=label,
    )


def _confirmation() -> Html:
    buttons = (
        tag("button", "Cancel", type="submit", value="no"),
        tag("button", "Confirm", type="submit", value="yes", class_="danger"),
    )
    form = tag("form", tag("p", id="question"), tag("p", *buttons, class_="buttons"), method="dialog")
    return tag("dialog", form, id="confirm", aria_labelledby="question")
