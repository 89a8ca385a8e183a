"""Validation of base URLs and host names, from their text alone: no request is sent."""

from collections.abc import Iterable
from ipaddress import ip_address
from urllib.parse import urlsplit

from leyden.core.errors import UsageError
from leyden.core.masking import mask_text

WANTED = "http(s)://HOST[:PORT][/PATH]"


def check_base_url(url: str, label: str) -> None:
    """Raise UsageError where `url` is no valid base URL; `label` is its name in the message."""
    if (wrong := _wrong(url)) is not None:
        raise UsageError(f"{label} must be {WANTED}, not {mask_text(url)!r}: {wrong}")


def bare_host(host: str) -> str:
    """Return a host's name or address in the form for comparisons: lower case, without brackets and final dot."""
    return host.strip("[]").rstrip(".").lower()


def is_address(host: str) -> bool:
    """Whether `host` is an IP address, without brackets."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether `host`, a name or an address, is this machine's loopback: `localhost` or a loopback address."""
    bare = bare_host(host)
    return ip_address(bare).is_loopback if is_address(bare) else bare == "localhost"


def check_hosts(names: Iterable[str]) -> tuple[str, ...]:
    """Return the additional host names that a server accepts; raises UsageError for an invalid host name."""
    found = tuple(names)
    for name in found:
        if is_address(bare_host(name)):
            continue
        if not name.strip() or len(name) > 253 or not name.isprintable() or set(name) & set("/:@?#[]*, \\"):
            raise UsageError(f"--allow-host takes a host's name or address, without scheme and port, not {name[:80]!r}")
    return found


def _wrong(url: str) -> str | None:
    """Return the reason why `url` is invalid; None where it is valid."""
    if not url:
        return "it is empty"
    if any(character.isspace() or not character.isprintable() for character in url):
        return "it has a space or a control character in it"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        return str(error)[:100]
    if parts.scheme not in ("http", "https"):
        return f"{parts.scheme}:// is not HTTP" if parts.scheme else "it does not begin with http:// or https://"
    if not parts.hostname:
        return "it has no host"
    if port == 0:
        return "0 is not a port"
    if parts.query or parts.fragment:
        return "it cannot contain ? or #, because paths are appended to it"
    try:
        parts.hostname.encode("idna")
    except UnicodeError:
        return f"{parts.hostname!r} is not a host name"
    return None
