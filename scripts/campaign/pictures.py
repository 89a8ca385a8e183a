"""Pictures that agents send: files of noise, which follow from their descriptions alone, so that none need be kept."""

from base64 import b64encode
from functools import lru_cache
from io import BytesIO
from random import Random

import msgspec
from PIL import Image

from leyden.core.data.encoding.images import digest_of

KINDS = ("PNG", "JPEG", "WEBP", "GIF")
SIDES = (12, 32, 40)
SHARED = 8
"""Pictures that many calls have, of all rollouts; all others belong to one call."""


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """An image file, before it is drawn."""

    kind: str
    """Format of the file."""
    width: int
    height: int
    name: str
    """The pixels follow from it: pictures of other names have others."""

    @property
    def digest(self) -> str:
        """SHA-256 of the file, as records name it."""
        return _drawn(self)[1]

    @property
    def media_type(self) -> str:
        """The format as HTTP names it."""
        return f"image/{self.kind.lower()}"

    @property
    def base64(self) -> str:
        """The file as text."""
        return b64encode(_drawn(self)[0]).decode()

    @property
    def url(self) -> str:
        """The file as a data URL."""
        return f"data:{self.media_type};base64,{self.base64}"


def draw_picture(random: Random, own_name: str) -> Picture:
    """Describe a picture: in most cases one that no other call has."""
    shared = random.random() < 0.2
    name = f"shared {random.randrange(SHARED)}" if shared else own_name
    look = Random(name) if shared else random
    return Picture(kind=look.choice(KINDS), width=look.choice(SIDES), height=look.choice(SIDES), name=name)


@lru_cache(maxsize=4096)
def _drawn(picture: Picture) -> tuple[bytes, str]:
    """Return the file and its digest."""
    pixels = Random(picture.name).randbytes(3 * picture.width * picture.height)
    file = BytesIO()
    Image.frombytes("RGB", (picture.width, picture.height), pixels).save(file, picture.kind)
    return file.getvalue(), digest_of(file.getvalue())
