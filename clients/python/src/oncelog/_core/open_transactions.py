"""Open transactions that commit what a consumer gives, and what spoils them. PURE.

One that was made for a consumer *takes all*: what was given since its last commit. One that was
sent offsets has *named* some. What is processed in a transaction is committed with it or not at all
(I21), so while one is open nothing else moves what it takes:

- a second one that takes the same is refused, and so is the user who commits or seeks;
- one whose commit is on its way, of a producer with several in flight, keeps the others out, but
  not the next one of its producer;
- where what was given is dropped all the same (the consumer was sent back, its group is asked
  again, a partition went to another member), it is spoiled: it can only be aborted.
"""

from __future__ import annotations

import itertools
from collections.abc import Container
from typing import Final

from oncelog.batch import TopicPartition
from oncelogpb import errors

# What came first: losses of input, and beginnings of transactions, are numbered as they happen.
_moments: Final = itertools.count(1)


class OpenTransactions:
    """Of one consumer. Transactions are known by their identity."""

    def __init__(self) -> None:
        # With what spoils each; None: it may be committed.
        self._open: dict[object, errors.OncelogError | None] = {}
        # Of those that name what they take.
        self._named: dict[object, Container[TopicPartition]] = {}
        # Of those whose commit is on its way: what they took is not what comes next.
        self._sent: set[object] = set()
        # The last loss of records that were given and not committed, and when it was.
        self._last_loss: tuple[int, errors.OncelogError] | None = None

    def __bool__(self) -> bool:
        return bool(self._open)

    def begin(
        self, transaction: object, began: int, named: Container[TopicPartition] | None = None
    ) -> None:
        """It takes what is named (a table that may grow), or all. `began`: the moment from which on
        its output may be made of that. Safe to repeat: what has spoiled it stays. Raises
        InvalidArgument where another one takes it."""
        others = self._open.keys() - {transaction} - self._sent
        if others and (named is None or not others <= self._named.keys()):
            raise errors.InvalidArgument(
                "another open transaction commits what this consumer gives: end that one first, or "
                "use a consumer for each",
                field="consumer",
            )
        loss = self._last_loss
        spoiled_by = loss[1] if loss is not None and loss[0] > began else None
        if named is not None and transaction not in self._open:
            self._named[transaction] = named
        self._open.setdefault(transaction, spoiled_by)

    def end(self, transaction: object) -> None:
        """It has ended. Safe to repeat."""
        self._open.pop(transaction, None)
        self._named.pop(transaction, None)
        self._sent.discard(transaction)

    def sent(self, transaction: object) -> None:
        """Its commit is on its way, as one of several: the next one may begin. `end` follows."""
        self._sent.add(transaction)

    def require(self, transaction: object) -> None:
        """Raises what has spoiled it."""
        spoiled_by = self._open.get(transaction)
        if spoiled_by is not None:
            raise spoiled_by

    def require_not_taken(self, place: TopicPartition, what: str) -> None:
        """What was given of that partition is nobody's yet. Raises InvalidArgument."""
        takes_all = self._open.keys() != self._named.keys()
        if takes_all or any(place in named for named in self._named.values()):
            raise errors.InvalidArgument(
                f"a transaction is open that commits what this consumer has given of "
                f"{place.topic!r} partition {place.partition}: end it before you {what} (flush its "
                "producer where it is in flight)",
                field="consumer",
            )

    def lose(self, why: errors.OncelogError) -> None:
        """What is open is made of records that another one makes something of, too."""
        self._last_loss = (this_moment(), why)
        self.drop(why)

    def drop(self, why: errors.OncelogError) -> None:
        """What was given and not committed is given again: who takes all of it would commit less
        than it has processed, and what is named would be processed once more after its commit."""
        # A thread may begin one meanwhile: what is gone through is a copy.
        for one, before in list(self._open.items()):
            if before is None and one in self._open:
                self._open[one] = why


def this_moment() -> int:
    """A number above all that were given before."""
    return next(_moments)
