"""Weight transfer: gives whole weights to a vLLM server, as a policy folder or through GPU memory."""

import base64
import pickle
import shutil
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import Tensor

from leyden.core.engine.vllm.client import VllmClient
from leyden.core.errors import EngineError

_WEIGHTS = {".safetensors", ".bin", ".pt", ".pth", ".h5", ".msgpack", ".gguf", ".onnx"}

Handle = dict[str, tuple[Any, ...]]
"""GPU id to what another process needs to access a tensor in that GPU's memory."""


def write_policy(source: str, weights: Mapping[str, object], folder: Path) -> None:
    """Write the policy in `source`, a folder or a hub name, into a new `folder`, with other weights.

    Raises EngineError if one of them is not a tensor.
    """
    tensors = {name: _tensor(name, value).detach().cpu().contiguous() for name, value in weights.items()}
    folder.mkdir(parents=True)
    if Path(source).is_dir():
        for path in Path(source).iterdir():
            if path.is_file() and path.suffix not in _WEIGHTS and not path.name.endswith(".index.json"):
                shutil.copyfile(path, folder / path.name)
    else:
        transformers: Any = import_module("transformers")
        for part in (transformers.AutoConfig, transformers.AutoTokenizer):
            part.from_pretrained(source, trust_remote_code=False).save_pretrained(folder)
    files: Any = import_module("safetensors.torch")
    files.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def cuda_handle(tensor: Tensor) -> Handle:
    """Return what another process on this machine needs to access `tensor`, which must stay alive until then."""
    torch: Any = import_module("torch")
    reductions: Any = import_module("torch.multiprocessing.reductions")
    _, arguments = reductions.reduce_tensor(tensor)
    return {str(torch.cuda.get_device_properties(tensor.device).uuid): arguments}


class SharedWeights:
    """Weights on a GPU that vLLM reads from the Leyden process (its weight transfer `ipc`).

    `export` returns the handle of a tensor.

    vLLM accepts these handles pickled, and only with its development endpoints open. These need no key: every process
    that reaches the loopback of this machine can use them.
    """

    def __init__(self, export: Callable[[Tensor], Handle] = cuda_handle) -> None:
        self._export = export
        self._held: dict[str, Tensor] = {}

    def hold(self, weights: Mapping[str, object]) -> None:
        """Keep copies of these weights as the ones to serve; a restarted server is sent them again."""
        self._held = {name: _tensor(name, value).detach().clone().contiguous() for name, value in weights.items()}

    async def begin(self, client: VllmClient, version: int) -> None:
        """Prepare a newly started server for updates, and send it the current weights."""
        await client.request("POST", "/init_weight_transfer_engine", {"init_info": {"packed": False}})
        if self._held:
            await self.send(client, version)

    async def send(self, client: VllmClient, version: int) -> None:
        """Make the server load the weights, and clear its prefix cache."""
        handles = [self._export(tensor) for tensor in self._held.values()]
        info = {
            "names": list(self._held),
            "dtype_names": [str(tensor.dtype).rpartition(".")[2] for tensor in self._held.values()],
            "shapes": [list(tensor.shape) for tensor in self._held.values()],
            "ipc_handles_pickled": base64.b64encode(pickle.dumps(handles)).decode(),
        }
        await client.request("POST", "/pause?mode=abort")
        await client.request("POST", "/start_weight_update")
        await client.request("POST", "/update_weights", {"update_info": info})
        await client.request("POST", "/finish_weight_update", {"weight_version": str(version)})
        await client.request("POST", "/reset_prefix_cache")
        await client.request("POST", "/resume")


def _tensor(name: str, value: object) -> Tensor:
    if not isinstance(value, Tensor):
        raise EngineError(f"{name} is a {type(value).__name__}, not a tensor")
    return value
