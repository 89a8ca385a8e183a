"""`ImageProcessor`: computes from image files what one vision-language model reads.

Gateway, engine and trainer use it, each with the files of the policy's folder. So all of them read the same pixels. It
resizes with Pillow everywhere, because other libraries give slightly different pixels.
"""

from collections import OrderedDict
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leyden.core.errors import ImageError, PolicyError, first_line
from leyden.core.images.files import decode

FAMILIES = {"llava": frozenset({"clip_vision_model", "siglip_vision_model"})}
"""Model types that read images, and the vision models in them that give every image the same number of tokens.

Their tokens have plain positions, and attend only to the tokens before them.
"""
CACHED_BYTES = 64 << 20
"""Bytes of pixels that are kept; those of the least recently read image are dropped first."""


def reads_images(config: Any) -> bool:
    """Return whether a model with this `transformers` configuration can read images here."""
    towers = FAMILIES.get(getattr(config, "model_type", ""), frozenset[str]())
    return getattr(getattr(config, "vision_config", None), "model_type", None) in towers


def model_class(source: str) -> Any:
    """Return the `transformers` class that loads the model in a folder or of a hub name.

    Raises what `transformers` raises for a configuration that cannot be read.
    """
    import transformers  # imported here, because it takes seconds

    library: Any = transformers
    config = library.AutoConfig.from_pretrained(source, trust_remote_code=False)
    return library.AutoModelForImageTextToText if reads_images(config) else library.AutoModelForCausalLM


class ImageProcessor:
    """Image processor in a folder or of a hub name; raises PolicyError if it cannot be loaded."""

    def __init__(self, source: str) -> None:
        import transformers  # imported here, because it takes seconds

        library: Any = transformers
        try:
            processor = library.AutoProcessor.from_pretrained(source, trust_remote_code=False, backend="pil")
            self.mark: str = processor.image_token
            """Text in a rendered prompt that stands for an image."""
            self.token: int = processor.image_token_id
            """Id of the placeholder token."""
            self._processor = processor
        except Exception as error:
            raise PolicyError(
                f"policy {source!r}: its image processor cannot be loaded ({first_line(error)})"
            ) from error
        self._kept: OrderedDict[str, NDArray[np.float32]] = OrderedDict()
        self._kept_bytes = 0
        self._lock = Lock()

    @classmethod
    def find(cls, source: str) -> "ImageProcessor | None":
        """Return the processor of a policy; None if its model reads no images. Raises PolicyError."""
        import transformers

        library: Any = transformers
        try:
            config = library.AutoConfig.from_pretrained(source, trust_remote_code=False)
        except Exception:  # a folder that holds only a tokenizer, or a configuration that no library can read
            return None
        return cls(source) if reads_images(config) else None

    def __deepcopy__(self, memo: object) -> "ImageProcessor":
        """Return the object itself, which copies of a model share."""
        return self

    def pixels(self, digest: str, data: bytes) -> NDArray[np.float32]:
        """Return what the model reads of an image file, (channels, height, width); ImageError for an invalid file."""
        with self._lock:
            if digest in self._kept:
                self._kept.move_to_end(digest)
                return self._kept[digest]
        try:
            found = self.prepared(decode(data))
        except ImageError:
            raise
        except Exception as error:
            raise ImageError(f"it cannot be prepared for the model: {first_line(error)}") from error
        with self._lock:
            if digest not in self._kept:
                self._kept[digest] = found
                self._kept_bytes += found.nbytes
            while self._kept_bytes > CACHED_BYTES and len(self._kept) > 1:
                self._kept_bytes -= self._kept.popitem(last=False)[1].nbytes
        return found

    def prepared(self, picture: Any) -> NDArray[np.float32]:
        """Return what the model reads of a picture in RGB: a Pillow image, or an array (height, width, 3)."""
        (pixels,) = self._processor.image_processor(picture, return_tensors="np")["pixel_values"]
        return np.ascontiguousarray(pixels, dtype=np.float32)

    def tokens(self, pixels: NDArray[np.float32]) -> int:
        """Return the number of placeholder tokens of an image."""
        marks: str = self._processor.replace_image_token({"pixel_values": [pixels]}, 0)
        return len(marks) // len(self.mark)
