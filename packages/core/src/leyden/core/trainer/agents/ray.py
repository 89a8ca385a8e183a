"""The agent side of a sitting on a Ray cluster. Ray is imported when the sitting begins."""

import math
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from leyden.core.errors import UsageError
from leyden.core.trainer.agents.local import AgentPlan, AgentSide, CheckAgents, worker_spec
from leyden.core.trainer.agents.placement import LOOPBACK, Runners
from leyden.core.trainer.serving.address import Address


def ray_agents(plan: AgentPlan, runners: Runners) -> AgentSide:
    """The workers of `worker_agents`, hosted by actors of a Ray cluster; what they print goes to `plan.log_file`.

    The side raises UsageError where Ray is missing, no cluster answers, it has no room, or its nodes cannot reach us.
    """

    @asynccontextmanager
    async def side(address: Address) -> AsyncGenerator[CheckAgents]:
        from leyden.core.runner.workers.ray_cluster import ray_cluster
        from leyden.core.runner.workers.ray_pool import RayPool

        needed = math.ceil(plan.workers * runners.ray_cpus)
        async with ray_cluster(runners.ray_address, needed) as cluster:
            here_only = urlsplit(address.url).hostname in LOOPBACK
            nodes = cluster.nodes()
            if here_only and len(nodes) > 1:
                raise UsageError(
                    f"the Ray cluster has {len(nodes)} nodes, and the run listens on this machine alone: give --host "
                    f"0.0.0.0 (and --advertise, if this machine is not {cluster.own_address} to them)"
                )
            pool = RayPool(
                cluster,
                worker_spec(plan, address),
                plan.workers,
                hosts=min(plan.workers, runners.ray_actors or len(nodes)),
                cpus=runners.ray_cpus,
                here_only=here_only,
            )
            await pool.start()
            try:
                yield pool.check
            finally:
                await pool.stop()

    return side
