"""Whether a text can be the base URL of a server. Asks no server."""

from ipaddress import ip_address
from urllib.parse import urlsplit

from leyden.core.errors import UsageError
from leyden.core.masking import mask_text

WANTED = "http(s)://HOST[:PORT][/PATH]"


def check_base_url(url: str, said: str) -> None:
    """Raise UsageError where no request could be sent to `url`; `said` is what the message calls it."""
    if (wrong := _wrong(url)) is not None:
        raise UsageError(f"{said} must be {WANTED}, not {mask_text(url)!r}: {wrong}")


def is_loopback(host: str) -> bool:
    """Whether `host`, a name or an address, is this machine to itself."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.rstrip(".").lower() == "localhost"


def _wrong(url: str) -> str | None:
    """What is wrong with it; None where nothing is."""
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
        return "it names no host"
    if port == 0:
        return "0 is no port"
    if parts.query or parts.fragment:
        return "paths are put behind it, so it can have no ? or #"
    try:
        parts.hostname.encode("idna")
    except UnicodeError:
        return f"{parts.hostname!r} is no name of a host"
    return None
