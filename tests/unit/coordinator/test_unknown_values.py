"""Values of enums that came with a later version."""

from __future__ import annotations

from typing import Any

import pytest

from oncelogpb.errors import InvalidArgument
from oncelogpb.v1 import coordinator_pb2 as pb
from oncelogpb.v1 import types_pb2 as types
from tests.unit.coordinator.calls import batch, begin, commit, init, run
from tests.unit.coordinator.harness import Coordinator, FakeCall


def test_what_is_not_known_here_is_refused_and_not_taken_for_less() -> None:
    """A wait of a later version was none, and a state nobody's."""
    unknown: Any = 9

    async def story(c: Coordinator) -> None:
        who = await init(c)
        tx_id = await begin(c, who)
        end = c.replica.log_end
        one_shot = pb.TransactRequest(
            producer=who, request_number=1, batches=[batch()], wait=unknown
        )
        listing = pb.ListTransactionsRequest(states=[types.TRANSACTION_STATE_ONGOING, unknown])
        for call, field in (
            (commit(c, who, tx_id, wait=unknown), "wait"),
            (c.service.transact(one_shot, FakeCall()), "wait"),
            (c.service.list_transactions(listing, FakeCall()), "states"),
        ):
            with pytest.raises(InvalidArgument) as refusal:
                await call
            assert refusal.value.metadata["field"] == field
        assert c.replica.log_end == end

    run(story)
