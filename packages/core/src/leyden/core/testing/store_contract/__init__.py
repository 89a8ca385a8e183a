"""`StoreContract`: what every `LightningStore` promises, as a test class to subclass.

An implementation gives a store to each test and overrides none:

    class TestMyStore(StoreContract):
        @asynccontextmanager
        async def opened(self, folder: Path) -> AsyncGenerator[LightningStore]:
            store = await MyStore.open(folder / "store.db")
            yield store
            await store.close()

Needs pytest with pytest-asyncio in auto mode, and Hypothesis. Knows nothing of any one store.
"""

from leyden.core.testing.store_contract.conversations import ConversationTests
from leyden.core.testing.store_contract.lifecycle import LifecycleTests
from leyden.core.testing.store_contract.named_queues import NamedQueueTests
from leyden.core.testing.store_contract.queries import QueryTests
from leyden.core.testing.store_contract.queue import QueueTests
from leyden.core.testing.store_contract.records import RecordTests
from leyden.core.testing.store_contract.requests import RequestTests
from leyden.core.testing.store_contract.runs import RunTests
from leyden.core.testing.store_contract.span_intake import SpanIntakeTests
from leyden.core.testing.store_contract.span_states import SpanStateTests
from leyden.core.testing.store_contract.superseding import SupersedingTests
from leyden.core.testing.store_contract.text import TextTests
from leyden.core.testing.store_contract.values import ValueTests
from leyden.core.testing.store_contract.waiting import WaitingTests
from leyden.core.testing.store_contract.workers import WorkerTests

__all__ = ["OneQueueContract", "StoreContract"]


class OneQueueContract(
    LifecycleTests,
    QueueTests,
    SpanStateTests,
    SpanIntakeTests,
    ConversationTests,
    QueryTests,
    TextTests,
    ValueTests,
    RequestTests,
    SupersedingTests,
    WaitingTests,
    RecordTests,
    RunTests,
    WorkerTests,
):
    """Every promise of a store with a single queue, such as a `QueueView`."""


class StoreContract(OneQueueContract, NamedQueueTests):
    """Every promise."""
