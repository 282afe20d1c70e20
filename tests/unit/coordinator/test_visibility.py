"""Whether a transaction, and what its producer committed before it, can be read everywhere: asked
by who takes over positions that it moved (ADR 72)."""

from __future__ import annotations

from oncelog_server.coordinator.commands import MarkersAnswered
from oncelog_server.coordinator.deliveries import Deliveries
from oncelog_server.core.access import Need
from oncelog_server.core.ids import JournalOffset, ProducerId
from oncelogpb.v1 import coordinator_pb2 as pb
from oncelogpb.v1 import types_pb2 as types
from tests.unit.coordinator.calls import begin, commit, exposing, init, refused, run
from tests.unit.coordinator.harness import Coordinator, FakeCall, until
from tests.unit.coordinator.test_deliveries import applied, committed
from tests.unit.coordinator.world import A0, A1


class Unseeing(FakeCall):
    """Of a caller who may describe nothing."""

    def sees(self, need: object) -> bool:
        assert isinstance(need, Need)
        return False


async def ask(
    c: Coordinator, tx_id: int, call: FakeCall | None = None
) -> pb.TransactionDescription:
    request = pb.GetTransactionRequest(tx_id=tx_id, only_visibility=True)
    reply: pb.GetTransactionReply = await c.service.get_transaction(request, call or FakeCall())
    return reply.transaction


def test_i21_an_earlier_one_of_its_producer_counts_wherever_it_waits() -> None:
    """Each participant has a line of its own: the second has been acknowledged by all of its own,
    and the first waits elsewhere."""
    deliveries = Deliveries()
    deliveries.add(committed(1, A0))
    deliveries.add(committed(2, A1))
    deliveries.sent(A1)
    deliveries.answered(MarkersAnswered(A1, applied(2)))
    assert deliveries.is_visible(committed(2).tx_id)
    second = JournalOffset(1_000_002)
    assert deliveries.first_invisible(ProducerId(1), second) == (1, [A0])
    assert deliveries.first_invisible(ProducerId(2), second) is None, "nor does another's"
    assert deliveries.first_invisible(ProducerId(1), JournalOffset(1_000_000)) is None
    deliveries.sent(A0)
    deliveries.answered(MarkersAnswered(A0, applied(1)))
    assert deliveries.first_invisible(ProducerId(1), second) is None


def test_i21_who_asks_hears_which_is_waited_for_until_none_is() -> None:
    async def story(c: Coordinator) -> None:
        leader, c.around.leader = c.around.leader, None
        who = await init(c)
        first = await begin(c, who)
        told = await ask(c, first)
        assert told == pb.TransactionDescription(tx_id=first, state=types.TRANSACTION_STATE_ONGOING)
        await commit(c, who, first)
        second = await begin(c, who, 2)
        await commit(c, who, second)
        for tx_id in (first, second):
            told = await ask(c, tx_id)
            assert (told.tx_id, told.visible) == (first, False)
            assert [partition.number for partition in told.unacknowledged] == [0, 1]
        told = await ask(c, second, Unseeing())
        assert (told.tx_id, told.visible, len(told.unacknowledged)) == (first, False, 0)
        c.around.leader, c.around.markers = leader, exposing
        await until(lambda: len(c.state.transactions) == 0)
        told = await ask(c, second)
        assert (told.tx_id, told.state) == (second, types.TRANSACTION_STATE_COMMITTED)
        assert told.visible
        assert not told.HasField("producer"), "that needs the right to describe it"
        unknown = c.replica.partition.number << 48 | 999
        assert await refused(ask(c, unknown)) == "UNKNOWN_TRANSACTION"

    run(story)
