"""A Ray cluster whose workers are forks: `python -m verl_cpu.forked_workers start --head …`, as `ray start --head …`.

Loading torch and transformers takes a worker four seconds of a core, and each start of VERL needs ten workers.
"""

import subprocess
import sys
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

import forks

LOADED = (
    "pandas",
    "torch",
    "tensordict",
    "transformers.models.auto.modeling_auto",
    "peft",
    "datasets",
    "hydra",
    "torch.distributed.checkpoint",
    "transformers.models.qwen2.modeling_qwen2",
    "uvicorn",
    "starlette.applications",
    "aiohttp",
)
"""Not Ray, which reads environment variables while it is loaded, and so nothing of VERL."""


def main(arguments: list[str]) -> None:
    """Start the template, then `ray ARGUMENTS` with workers that are forks of it, in this process."""
    with TemporaryDirectory(prefix="forks-") as folder:
        place = Path(folder, "socket")
        template = subprocess.Popen([sys.executable, forks.__file__, place, *LOADED], stdin=subprocess.PIPE)
        sys.executable = forks.python_of(place, Path(folder, "python"))
        sys.argv = ["ray", *arguments]
        try:
            import_module("ray.scripts.scripts").main()
        finally:
            template.kill()
            template.wait()


if __name__ == "__main__":
    main(sys.argv[1:])
