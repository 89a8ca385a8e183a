"""VERL starter: the process that runs VERL, started with `python -m` on this module.

The first line of its input is a `Launch`. The process ends when VERL does, or when its standard input ends, because
then its parent process is gone. For a configuration that cannot work, the last line of its output has the reason after
`REFUSED`, and the exit code is 2.
"""

import os
import sys
import threading

import msgspec

from leyden.core.algorithm.verl.driver.launch import REFUSED, Launch
from leyden.core.errors import UsageError


def main() -> int:
    """Train as the `Launch` on standard input describes; returns the exit code."""
    launch = msgspec.json.decode(sys.stdin.buffer.readline(), type=Launch)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ.update(launch.environment)
    try:
        from leyden.core.algorithm.verl.settings import compose

        config = compose(launch.config, launch.overrides, launch.settings)
    except UsageError as error:
        sys.stderr.write(f"\n{REFUSED}{error}\n")
        return 2
    from leyden.core.algorithm.verl.inside_verl.verl_trainer import train

    train(config, launch.environment, launch.ray_address)
    return 0


def _end_with_parent() -> None:
    # sys.stdin is not used: a waiting thread would still hold its lock when the interpreter ends.
    while os.read(0, 1024):
        continue
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
