"""`ImageInputs`: what a vision-language model reads of prompts with images, with gradients.

The engine reads the same pixels through the same processor, so the log-probabilities of a response are the same.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from leyden.core.data.encoding.images import FIRST_IMAGE_ID, PromptImage
from leyden.core.data.transition import Transition
from leyden.core.engine.embedded.image_embeddings import image_features, input_embeddings
from leyden.core.errors import ImageError, PolicyError, TrainingError
from leyden.core.images.processor import ImageProcessor, reads_images


class ImageInputs:
    """Images of one policy's prompts; `source` is the folder or hub name of its image processor."""

    def __init__(self, source: str, config: Any) -> None:
        self.takes_images = reads_images(config)
        """Whether the policy's model reads images."""
        self._source = source
        self._loaded: ImageProcessor | None = None

    def __deepcopy__(self, memo: object) -> "ImageInputs":
        """Return the object itself, which copies of a model share."""
        return self

    def inputs(self, module: nn.Module, ids_BT: Tensor, images: Mapping[int, PromptImage]) -> dict[str, Tensor]:
        """Return the arguments with which `module` reads tokens; `images` are by the id of their first token.

        Raises TrainingError for images that cannot be read; see `why_not`.
        """
        if not images:
            return {"input_ids": ids_BT}
        image_ids: Any = ids_BT[ids_BT >= FIRST_IMAGE_ID]
        present: set[int] = set(image_ids.unique().tolist())
        used = {first: one for first, one in images.items() if not present.isdisjoint(range(first, first + one.tokens))}
        if not used:
            return {"input_ids": ids_BT}
        try:
            pixels = [self._processor.pixels(image.digest, image.data) for image in used.values()]
        except (ImageError, PolicyError) as error:
            raise TrainingError(f"an image of a prompt cannot be read: {error}") from error
        features = dict(zip(used, image_features(module, pixels), strict=True))
        return {"inputs_embeds": input_embeddings(module, ids_BT, features)}

    def why_not(self, transition: Transition) -> str:
        """Return why the images of a transition's prompt cannot be read; empty if they can, or if it has none."""
        if not transition.images:
            return ""
        if not self.takes_images:
            return f"{self._source} reads no images"
        try:
            for image in transition.images:
                if self._processor.tokens(self._processor.pixels(image.digest, image.data)) != image.tokens:
                    return "its images have other numbers of tokens here than where they were recorded"
        except (ImageError, PolicyError) as error:
            return f"an image of its prompt cannot be read: {error}"
        return ""

    @property
    def _processor(self) -> ImageProcessor:
        if self._loaded is None:
            self._loaded = ImageProcessor(self._source)
        return self._loaded
