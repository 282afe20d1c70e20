"""The blocking face of what operators do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from oncelog import aio
from oncelog._loop import LoopThread
from oncelog._plain_access import Access
from oncelog.aio.admin import NodeInfo, TopicInfo
from oncelog.aio.admin_transactions import TransactionInfo
from oncelog.aio.truncating import Before, Truncation
from oncelog.errors import OncelogError
from oncelog.groups import (
    GroupDescription,
    GroupInfo,
    GroupOffset,
    OffsetReset,
    Rows,
    Where,
    Wheres,
)


class Admin:
    """Topics, transactions, groups, nodes. See `aio.Admin`."""

    def __init__(self, loop: LoopThread, twin: aio.Admin) -> None:
        self._loop = loop
        self._twin = twin
        self._access = Access(loop, twin.access)

    @property
    def access(self) -> Access:
        """Who may do what, and how much of it."""
        return self._access

    def create_topic(
        self,
        name: str,
        partitions: int = 0,
        *,
        replication_factor: int = 0,
        configs: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> TopicInfo:
        """See `aio.Admin.create_topic`."""
        return self._loop.run(
            self._twin.create_topic(
                name,
                partitions,
                replication_factor=replication_factor,
                configs=configs,
                validate_only=validate_only,
            )
        )

    def topics(self, *, internal: bool = False) -> list[TopicInfo]:
        """See `aio.Admin.topics`."""
        return self._loop.run(self._twin.topics(internal=internal))

    def describe_topic(self, name: str) -> TopicInfo:
        """See `aio.Admin.describe_topic`."""
        return self._loop.run(self._twin.describe_topic(name))

    def alter_topic(
        self, name: str, configs: Mapping[str, str] | None = None, *, partitions: int = 0
    ) -> TopicInfo:
        """See `aio.Admin.alter_topic`."""
        return self._loop.run(self._twin.alter_topic(name, configs, partitions=partitions))

    def delete_topic(self, name: str) -> None:
        """See `aio.Admin.delete_topic`."""
        self._loop.run(self._twin.delete_topic(name))

    def truncate(
        self,
        topic: str,
        *,
        before: Before,
        partition: int | None = None,
        dry_run: bool = False,
    ) -> Rows[Truncation]:
        """See `aio.Admin.truncate`."""
        return self._loop.run(
            self._twin.truncate(topic, before=before, partition=partition, dry_run=dry_run)
        )

    def offsets(
        self, topic: str, at: str | int = "latest", *, isolation: str = "committed"
    ) -> list[int]:
        """See `aio.Admin.offsets`."""
        return self._loop.run(self._twin.offsets(topic, at, isolation=isolation))

    def transactions(
        self,
        *,
        states: Sequence[str] = (),
        min_age_ms: int = 0,
        name: str = "",
        group: str = "",
        limit: int = 0,
    ) -> list[TransactionInfo]:
        """See `aio.Admin.transactions`."""
        return self._loop.run(
            self._twin.transactions(
                states=states, min_age_ms=min_age_ms, name=name, group=group, limit=limit
            )
        )

    def describe_transaction(
        self,
        transaction: int | str | OncelogError = 0,
        *,
        producer_id: int = 0,
        generation: int = 0,
        request_number: int = 0,
    ) -> TransactionInfo:
        """See `aio.Admin.describe_transaction`."""
        return self._loop.run(
            self._twin.describe_transaction(
                transaction,
                producer_id=producer_id,
                generation=generation,
                request_number=request_number,
            )
        )

    def abort_transaction(self, tx_id: int) -> None:
        """See `aio.Admin.abort_transaction`."""
        self._loop.run(self._twin.abort_transaction(tx_id))

    def resolve_transaction(self, tx_id: int, topic: str, partition: int, action: str) -> int:
        """See `aio.Admin.resolve_transaction`."""
        return self._loop.run(self._twin.resolve_transaction(tx_id, topic, partition, action))

    def groups(self, prefix: str = "") -> list[GroupInfo]:
        """See `aio.Admin.groups`."""
        return self._loop.run(self._twin.groups(prefix))

    def describe_group(self, group: str) -> GroupDescription:
        """See `aio.Admin.describe_group`."""
        return self._loop.run(self._twin.describe_group(group))

    def group_offsets(self, group: str) -> Rows[GroupOffset]:
        """See `aio.Admin.group_offsets`."""
        return self._loop.run(self._twin.group_offsets(group))

    def wait_for_commit(
        self,
        group: str,
        transaction: int | str | OncelogError,
        *,
        timeout_s: float = 30.0,
    ) -> None:
        """See `aio.Admin.wait_for_commit`."""
        self._loop.run(self._twin.wait_for_commit(group, transaction, timeout_s=timeout_s))

    def reset_offsets(
        self, group: str, to: Where | Wheres, *, dry_run: bool = False
    ) -> Rows[OffsetReset]:
        """See `aio.Admin.reset_offsets`."""
        return self._loop.run(self._twin.reset_offsets(group, to, dry_run=dry_run))

    def remove_member(self, group: str, member_id: str = "", *, instance_id: str = "") -> str:
        """See `aio.Admin.remove_member`."""
        return self._loop.run(self._twin.remove_member(group, member_id, instance_id=instance_id))

    def delete_group(self, group: str) -> None:
        """See `aio.Admin.delete_group`."""
        self._loop.run(self._twin.delete_group(group))

    def nodes(self) -> list[NodeInfo]:
        """See `aio.Admin.nodes`."""
        return self._loop.run(self._twin.nodes())
