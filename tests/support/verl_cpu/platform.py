"""A CPU as VERL's accelerator, for tests: VERL 0.9 ships none, and its engines and its trainer run unchanged on it.

Loaded by `import verl` itself in the variables of `environment`, with this folder's parent among the paths. Under Ray a
logical GPU stands for the CPU, since VERL waits for ever for a resource of another name.
"""

import functools
import types
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch

# VERL is not among the packages that types are checked with.
_platforms: Any = import_module("verl.plugin.platform")
_distributed: Any = import_module("verl.utils.distributed")
_models: Any = import_module("verl.utils.model")
PlatformBase: Any = _platforms.PlatformBase


def _nothing(*_: object, **__: object) -> None:
    """Do what a CPU has to do where a device is told to wait, to free memory or to be the current one."""


def _zero(*_: object, **__: object) -> int:
    return 0


class _Device(types.ModuleType):
    """`torch.cpu`, with what VERL asks of a device's module beyond it."""

    def __init__(self) -> None:
        super().__init__("verl_cpu_device")
        for name in ("empty_cache", "ipc_collect", "synchronize", "reset_peak_memory_stats", "set_device"):
            setattr(self, name, _nothing)
        for name in ("max_memory_allocated", "max_memory_reserved", "memory_allocated", "memory_reserved"):
            setattr(self, name, _zero)
        random: Any = torch.random
        self.manual_seed = self.manual_seed_all = random.manual_seed
        self.get_rng_state, self.set_rng_state = random.get_rng_state, random.set_rng_state

    def mem_get_info(self, *_: object) -> tuple[int, int]:
        return (1 << 33, 1 << 33)

    def get_device_name(self, *_: object) -> str:
        return "cpu"

    def is_available(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)


DEVICE = _Device()


@_platforms.PlatformRegistry.register(platform="cpu")
class CpuPlatform(PlatformBase):
    """One CPU as one device, with gloo between processes."""

    device_name = "cpu"
    vendor_name = "cpu"
    device_module = DEVICE

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return True

    def current_device(self) -> str:
        return "cpu"

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None:
        _nothing(device_index)

    def synchronize(self, device_index: int | None = None) -> None:
        _nothing(device_index)

    def manual_seed(self, seed: int) -> None:
        DEVICE.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        DEVICE.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        _nothing(settings)

    def empty_cache(self) -> None:
        _nothing()

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return (None, None)

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CPU_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Generator[None]:
        yield

    def profiler_start(self) -> None:
        _nothing()

    def profiler_stop(self) -> None:
        _nothing()

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None:
        _nothing()


def _name_gloo_once() -> None:
    """VERL names a backend for the CPU and one for its device; torch refuses the same device twice."""
    whole = _distributed.initialize_global_process_group_ray

    @functools.wraps(whole)
    def initialize(timeout_second: float | None = None, backend: str | None = None) -> None:
        whole(timeout_second=timeout_second, backend=backend or "cpu:gloo")

    _distributed.initialize_global_process_group_ray = initialize


def _load_critics_without_flash_attention() -> None:
    """VERL loads a model with a value head with `flash_attention_2`, whatever it is told, and a CPU has none."""

    def load(local_path: str, torch_dtype: Any, model_config: Any, trust_remote_code: bool) -> Any:
        transformers: Any = import_module("transformers")
        return transformers.AutoModelForTokenClassification.from_pretrained(
            local_path,
            dtype=torch_dtype,
            config=model_config,
            attn_implementation="sdpa",
            trust_remote_code=trust_remote_code,
        )

    _models.load_valuehead_model = load


_name_gloo_once()
_load_critics_without_flash_attention()
