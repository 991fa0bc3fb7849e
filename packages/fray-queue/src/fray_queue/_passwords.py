"""Passwords in the URLs of engines: taken out, or refused."""

from urllib.parse import unquote

from fray import SpecError


def parted(url: str) -> tuple[str, str | None]:
    """Return a URL without its password, and that; None where it holds none.

    What is before the last `@` counts, because a password that nobody has encoded may hold a `/`, `?` or `@`.
    """
    scheme, separator, rest = url.partition("://") if "://" in url else ("", "", url)
    who, at, hosts = rest.rpartition("@")
    if "=" in who.partition("?")[2]:  # this `@` is in an option
        address, mark, options = rest.partition("?")
        who, at, hosts = address.rpartition("@")
        hosts += mark + options
    user, colon, password = who.partition(":")
    if not colon:
        return url, None
    return f"{scheme}{separator}{user}{at if user else ''}{hosts}", unquote(password)


def refuse_password(url: str, variables: str) -> None:
    """Raise a SpecError that does not repeat the URL if it holds a password.

    Args:
        variables: Those that may hold one instead.
    """
    if parted(url)[1] is not None or "password=" in url.partition("?")[2]:
        raise SpecError(
            f"the URL of a queue must hold no password, as URLs are logged; set {variables} "
            "in the environment, and the user's name may stay"
        )
