"""Who comes and goes, as the group itself tells it: each life of a member has an id of its own."""

from __future__ import annotations

from oncelog.protocol import Protocol
from oncelogpb.errors import OncelogError
from oncelogpb.v1 import offset_manager_pb2 as pb
from tests.chaos.groups.traffic import Thread

LOOK_EVERY_S = 0.2
ANSWER_MS = 2_000


class Members(Thread):
    """Counts those that were seen; a short life between two looks is missed."""

    def __init__(self, bootstrap: str, group: str) -> None:
        self._bootstrap = bootstrap
        self._group = group
        self.joined = 0
        self.gone = 0
        super().__init__()

    @property
    def changes(self) -> int:
        return self.joined + self.gone

    def _work(self) -> None:
        before: set[str] = set()
        request = pb.DescribeGroupRequest(group=self._group)
        with Protocol(self._bootstrap) as protocol:
            while not self._ends.wait(LOOK_EVERY_S):
                try:
                    reply = protocol.call("offset_manager.describe_group", request, ANSWER_MS)
                except OncelogError:
                    continue
                now = {member.member_id for member in reply.members}
                self.joined += len(now - before)
                self.gone += len(before - now)
                before = now
