"""What is said of a process that gave no answer."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from oncelog_server.cli.asking import Unanswered, ask_each


class Refusal(grpc.RpcError):
    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        self._code, self._details = code, details

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details

    def result(self) -> Any:
        raise self


class Refusing:
    """Every process answers so."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        self._refusal = Refusal(code, details)

    def begin(self, *_: Any, timeout_s: float) -> Refusal:
        return self._refusal


@pytest.mark.parametrize(
    ("code", "details", "method", "why"),
    [
        (
            grpc.StatusCode.INVALID_ARGUMENT,
            "wrong boot id",
            "Replication/DescribeReplicas",
            "another process is at its address by now",
        ),
        (
            grpc.StatusCode.INVALID_ARGUMENT,
            "no such rule",
            "Cluster/CheckRules",
            "no such rule",
        ),
        (
            grpc.StatusCode.UNAVAILABLE,
            "certificate has expired",
            "Cluster/GetMetadata",
            "nobody answers at its address (certificate has expired)",
        ),
        (
            grpc.StatusCode.UNAVAILABLE,
            "",
            "Cluster/GetMetadata",
            "nobody answers at its address",
        ),
    ],
)
def test_why_a_process_gave_no_answer(
    code: grpc.StatusCode, details: str, method: str, why: str
) -> None:
    direct: Any = Refusing(code, details)
    answers = ask_each(direct, [("a", "a:1", object())], method, object)
    assert answers == {"a": Unanswered(why)}
