"""Tiny vision-language policies with random weights, for tests of images: a small LLaVA with all its files."""

from io import BytesIO
from pathlib import Path
from typing import Any

import torch.random

from leyden.core.testing.tiny_tokenizers import CHATML, save_tiny_tokenizer

IMAGE = "<image>"
SIDE, PATCH = 32, 8
"""Pixels of the side of an image as the model reads it, and of a patch; an image has one token for each patch."""
IMAGE_TOKENS = (SIDE // PATCH) ** 2
TEMPLATE = """\
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{% if message.content is string %}{{ message.content }}{% else -%}
{%- for part in message.content -%}
{%- if part.type == 'image' %}<image>{% elif part.type == 'text' %}{{ part.text }}{% endif -%}
{%- endfor -%}
{%- endif -%}
{%- for call in message.tool_calls or [] %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor -%}
<|im_end|>
{% endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif -%}"""
"""Chat template that renders images in messages of every role."""


def save_tiny_vision_policy(path: Path, *, seed: int = 0, width: int = 32, context: int = 512) -> None:
    """Save a LLaVA with random weights to `path`, with tokenizer, chat template and image processor."""
    import transformers

    library: Any = transformers
    save_tiny_tokenizer(path, TEMPLATE, special=(*CHATML, IMAGE), end=CHATML[-1])
    tokenizer = library.AutoTokenizer.from_pretrained(str(path))
    save_vision_processor(path, tokenizer)
    model = tiny_vision_model(len(tokenizer), tokenizer.convert_tokens_to_ids(IMAGE), seed, width, context)
    model.generation_config = library.GenerationConfig(
        do_sample=True, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    model.save_pretrained(str(path))


def save_vision_processor(path: Path, tokenizer: Any) -> None:
    """Save the processor of a tiny LLaVA, with its tokenizer, to `path`."""
    import transformers
    from transformers.models.clip import image_processing_pil_clip

    library: Any = transformers
    pictures: Any = image_processing_pil_clip
    processor = library.LlavaProcessor(
        image_processor=pictures.CLIPImageProcessorPil(
            size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE}
        ),
        tokenizer=tokenizer,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=tokenizer.chat_template,
        image_token=IMAGE,
    )
    processor.save_pretrained(str(path))


def tiny_vision_model(
    vocabulary: int, image_id: int, seed: int = 0, width: int = 32, context: int = 512, spread: float = 0.2
) -> Any:
    """Return a LLaVA whose weights depend on the seed alone; with a large `spread`, its log-probabilities differ."""
    import transformers

    library: Any = transformers
    vision = library.CLIPVisionConfig(
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=2,
        num_attention_heads=4,
        image_size=SIDE,
        patch_size=PATCH,
        projection_dim=width,
    )
    text = library.Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=context,
        tie_word_embeddings=True,
        initializer_range=spread,
    )
    config = library.LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_index=image_id,
        image_seq_length=IMAGE_TOKENS,
        vision_feature_layer=-1,
        tie_word_embeddings=True,
    )
    random_state: Any = torch.random
    with random_state.fork_rng(devices=[]):
        random_state.manual_seed(seed)
        return library.LlavaForConditionalGeneration(config).float().eval()


def picture(colour: tuple[int, int, int], kind: str = "PNG", side: int = SIDE) -> bytes:
    """Return an image file that is filled with one colour."""
    from PIL import Image

    file = BytesIO()
    Image.new("RGB", (side, side), colour).save(file, kind)
    return file.getvalue()
