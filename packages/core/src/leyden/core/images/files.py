"""Image files: reads data URLs and image files from agents, with limits on what they may decode to."""

import binascii
import io
import re
from base64 import b64decode
from typing import Any

from leyden.core.errors import ImageError, first_line

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
"""Formats that are read, by Pillow's names."""
MOST_PIXELS = 1 << 24
"""Most pixels of an image. The size is checked before the pixels are decoded."""
_DATA_URL = re.compile(r"data:(image/[a-z.+-]+)?(;[a-z]+=[^;,]*)*;base64,", re.IGNORECASE)


def read_data_url(url: str) -> bytes:
    """Return the file in a data URL; raises ImageError for any other URL, which is never fetched."""
    head = _DATA_URL.match(url)
    if head is None:
        shown = url[:40] + ("…" if len(url) > 40 else "")
        if url[:5].lower() == "data:":
            raise ImageError(f"'{shown}' is not a base64 data URL of an image, such as 'data:image/png;base64,…'")
        raise ImageError(f"the URL '{shown}' is not fetched; send the file as a data URL ('data:image/png;base64,…')")
    return read_base64(url[head.end() :])


def read_base64(text: str) -> bytes:
    """Return the bytes of a base64 text, in which line breaks are allowed; raises ImageError for an invalid one."""
    try:
        return b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise ImageError(f"its data is not valid base64: {first_line(error)}") from error


def decode(data: bytes) -> Any:
    """Return the picture in an image file as a Pillow image in RGB, turned as its orientation tag says.

    Raises ImageError for a file that is broken, animated, too large or of another format. The size in the file's head
    is checked before the pixels are decoded.
    """
    from PIL import Image, ImageOps

    bombs = (Image.DecompressionBombError, Image.DecompressionBombWarning)
    formats = ", ".join(FORMATS)
    try:
        picture = Image.open(io.BytesIO(data), formats=FORMATS)
    except bombs as error:
        raise ImageError(f"it has more than {MOST_PIXELS} pixels") from error
    except Exception as error:  # Pillow's readers raise many kinds of errors
        raise ImageError(f"it is not an image file in one of the formats {formats}") from error
    width, height = picture.size
    if width * height > MOST_PIXELS:
        raise ImageError(f"it has {width} × {height} pixels; at most {MOST_PIXELS} are read")
    if getattr(picture, "is_animated", False):
        raise ImageError("it is animated; send one of its pictures")
    try:
        picture.load()
        return ImageOps.exif_transpose(picture).convert("RGB")
    except Exception as error:
        raise ImageError(f"its file is broken: {first_line(error)}") from error
