"""Makes the two policies of a campaign: a text model, and a vision-language model around the same text model.

The text model answers in the embedded engine's fused forward pass, the other in the generic one.
"""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch.random

from campaign.plan import VIEWER
from leyden.core.data.route import POLICY
from leyden.core.engine.embedded.weights import load_model
from leyden.core.testing.tiny_vision import IMAGE, IMAGE_TOKENS, PATCH, SIDE, save_vision_processor

TEXT_POLICY = Path(__file__).parents[2] / "examples" / "calculator_langgraph" / "policy"
SPREAD = 0.2
"""Standard deviation of the random weights of the vision part: large enough that answers depend on the pixels."""
CONTENT = """\
{%- macro written(content) -%}
{%- if content is string %}{{ content }}{% else -%}
{%- for part in content or [] -%}
{%- if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif -%}
{%- endfor -%}
{%- endif -%}
{%- endmacro -%}
"""


def make_policies(folder: Path) -> Mapping[str, Path]:
    """Return the folders of the policies by name; that of the vision-language model is made in `folder`."""
    _save_viewer(folder / VIEWER)
    return {POLICY: TEXT_POLICY, VIEWER: folder / VIEWER}


def _save_viewer(out: Path) -> None:
    """Save a LLaVA with the weights of the text policy and a random vision part, which depends on nothing else."""
    bars: Any = import_module("transformers.utils.logging")
    bars.disable_progress_bar()
    transformers: Any = import_module("transformers")
    text: Any = load_model(TEXT_POLICY)
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(TEXT_POLICY))
    tokenizer.add_tokens([IMAGE], special_tokens=True)
    tokenizer.chat_template = _template(tokenizer.chat_template)
    tokenizer.save_pretrained(str(out))
    save_vision_processor(out, tokenizer)
    text.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            image_size=SIDE,
            patch_size=PATCH,
            projection_dim=32,
            initializer_range=SPREAD,
        ),
        text_config=text.config,
        image_token_index=tokenizer.convert_tokens_to_ids(IMAGE),
        image_seq_length=IMAGE_TOKENS,
        vision_feature_layer=-1,
        tie_word_embeddings=True,
        initializer_range=SPREAD,
    )
    random_state: Any = torch.random
    with random_state.fork_rng(devices=[]):
        random_state.manual_seed(0)
        model = transformers.LlavaForConditionalGeneration(config).float()
    model.model.language_model.load_state_dict(text.model.state_dict())
    model.tie_weights()
    model.generation_config = text.generation_config
    model.save_pretrained(str(out))


def _template(text: str) -> str:
    """Return the chat template of the text policy, changed so that contents may have images."""
    changed = text.replace("messages[0].content", "written(messages[0].content)")
    changed = changed.replace("+ message.content +", "+ written(message.content) +")
    changed = changed.replace("(message.content or '')", "written(message.content or '')")
    if changed.count("written(") != 3:
        raise ValueError("the chat template of the text policy writes contents in another way than expected")
    return CONTENT + changed
