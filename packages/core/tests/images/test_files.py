"""Image files from agents: what is read, and what is refused before it costs memory."""

import base64
import io
import struct
import zlib

import pytest
from PIL import Image

from leyden.core.errors import ImageError
from leyden.core.images.files import MOST_PIXELS, decode, read_data_url
from leyden.core.testing.tiny_vision import picture

RED = (200, 30, 30)


def encoded(data: bytes, head: str = "data:image/png;base64,") -> str:
    return head + base64.b64encode(data).decode()


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF"])
def test_a_picture_of_each_format_is_read(kind: str) -> None:
    found = decode(read_data_url(encoded(picture(RED, kind))))
    assert found.mode == "RGB" and found.size == (32, 32)
    assert all(abs(got - given) < 12 for got, given in zip(found.getpixel((5, 5)), RED, strict=True))


@pytest.mark.parametrize("head", ["data:image/png;base64,", "data:;base64,", "DATA:image/x-icon;charset=utf-8;base64,"])
def test_the_type_in_a_data_url_need_not_be_right(head: str) -> None:
    assert read_data_url(encoded(b"some bytes", head)) == b"some bytes"


def test_line_breaks_in_base64_are_allowed() -> None:
    assert read_data_url("data:image/png;base64,c29tZSBi\r\neXRlcw==\n") == b"some bytes"


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("https://example.com/a.png", "is not fetched; send the file as a data URL"),
        ("file:///etc/passwd", "is not fetched"),
        ("u" * 100, f"the URL '{'u' * 40}…' is not fetched"),
        ("", "the URL '' is not fetched"),
        ("data:image/png,AAAA", "is not a base64 data URL of an image"),
        ("data:text/plain;base64,AAAA", "is not a base64 data URL of an image"),
        ("data:image/png;base64,A*AA", "its data is not valid base64"),
        ("data:image/png;base64,é", "its data is not valid base64"),
    ],
)
def test_other_urls_are_refused_and_never_fetched(url: str, why: str) -> None:
    with pytest.raises(ImageError, match=why.replace("(", r"\(")):
        read_data_url(url)


def test_transparency_is_dropped_and_the_orientation_applied() -> None:
    wide = Image.new("RGBA", (8, 4), (*RED, 10))
    file, turned = io.BytesIO(), Image.Exif()
    turned[0x0112] = 6
    wide.save(file, "PNG", exif=turned)
    found = decode(file.getvalue())
    assert (found.mode, found.size) == ("RGB", (4, 8))
    assert found.getpixel((1, 1)) == RED


def png_head(width: int, height: int) -> bytes:
    """A PNG file of this size, most of whose pixels are missing."""
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)), (b"IDAT", zlib.compress(bytes(9)))]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


@pytest.mark.parametrize("size", [(4097, 4097), (10_000, 10_000), (60_000, 60_000)])
def test_a_decompression_bomb_is_refused_by_its_head(size: tuple[int, int]) -> None:
    with pytest.raises(ImageError, match=str(MOST_PIXELS)):
        decode(png_head(*size))


def test_broken_animated_and_other_files_are_refused() -> None:
    with pytest.raises(ImageError, match="its file is broken"):
        decode(picture(RED)[:-30])
    with pytest.raises(ImageError, match="its file is broken"):
        decode(png_head(8, 8))
    for nothing in (b"", b"GIF89a", b"<svg xmlns='http://www.w3.org/2000/svg'/>", picture(RED, "BMP")):
        with pytest.raises(ImageError, match="not an image file in one of the formats PNG, JPEG, WEBP, GIF"):
            decode(nothing)
    frames, file = [Image.new("RGB", (8, 8), colour) for colour in (RED, (0, 0, 0))], io.BytesIO()
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:])
    with pytest.raises(ImageError, match="animated"):
        decode(file.getvalue())
