"""What every participant's scripts know of questions:

look, questions           time passed; what is owed now
asked TX ..., answered    these questions were sent; a reply came to what was asked last
moved PARTITION ...       these journal partitions have another leader
verdict TX WORDS [of=P]   what the coordinator answered: never, committed without you, ...; the
                          question named who holds it here, or P
"""

from __future__ import annotations

import abc
from collections.abc import Sequence

from oncelog_server.core.ids import Generation, ProducerId, TxId
from oncelog_server.participant.commands import (
    Answered,
    Asked,
    Heard,
    HearVerdicts,
    LeaderMoved,
    Look,
    Question,
    Verdict,
)
from tests.golden.host import HostDriver, MachineHost


class AskingDriver(HostDriver):
    """See the module."""

    def __init__(self, host: MachineHost) -> None:
        super().__init__(host)
        # Questions that no answer came to.
        self._asked: tuple[Question, ...] = ()

    @abc.abstractmethod
    def parse_tx(self, word: str) -> TxId: ...

    @abc.abstractmethod
    def parse_who(self, word: str) -> tuple[ProducerId, Generation]: ...

    @abc.abstractmethod
    def held_for(self, tx_id: TxId) -> tuple[ProducerId, Generation]:
        """Whoever opened it here; nobody (0, 0)."""

    @abc.abstractmethod
    def show_question(self, question: Question) -> str: ...

    def ask(
        self, verb: str, words: Sequence[str], options: dict[str, str], line: str
    ) -> str | None:
        """None: not one of these verbs."""
        match verb:
            case "look":
                self.host.signal(Look())
            case "asked":
                asked = {self.parse_tx(word) for word in words}
                self._asked = tuple(one for one in self._owed() if one.tx_id in asked)
                self.host.signal(Asked(self._asked))
            case "answered":
                self.host.signal(Answered(self._asked))
            case "moved":
                self.host.signal(LeaderMoved(frozenset(int(word) for word in words)))
            case "questions":
                shown = [self.show_question(question) for question in self._owed()]
                return "\n".join(shown) or "no questions"
            case "verdict":
                tx_id, verdict = self.parse_tx(words[0]), Verdict["_".join(words[1:]).upper()]
                who = self.parse_who(options["of"]) if "of" in options else self.held_for(tx_id)
                return self.submit(HearVerdicts((Heard(tx_id, *who, verdict),)), line)
            case _:
                return None
        return ""

    def _owed(self) -> Sequence[Question]:
        owed: Sequence[Question] = self.host.machine.owed(self.host.high_watermark)
        return owed
