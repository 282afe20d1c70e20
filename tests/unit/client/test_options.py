"""Options are checked where they are given, by name."""

from __future__ import annotations

from typing import Any

import pytest

from oncelog.options import ConnectOptions, ConsumerOptions, ProducerOptions, make_options
from oncelogpb.errors import InvalidArgument


def test_an_unknown_option_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(InvalidArgument, match="did you mean 'linger_ms'"):
        make_options(ProducerOptions, {"linger": 5})
    with pytest.raises(InvalidArgument, match="there are: timeout_ms"):
        make_options(ConnectOptions, {"zzz": 5})


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (ConnectOptions, {"timeout_ms": 0}),
        (ConnectOptions, {"timeout_ms": True}),
        (ProducerOptions, {"linger_ms": -1}),
        (ProducerOptions, {"batch_bytes": 10}),
        (ProducerOptions, {"buffer_bytes_max": 10}),
        (ProducerOptions, {"partitioner": "md5"}),
        (ProducerOptions, {"compression": "gzip"}),
        (ConsumerOptions, {"isolation": "raw"}),
        (ConsumerOptions, {"start": "yesterday"}),
        (ConsumerOptions, {"batch_records_max": 0}),
    ],
)
def test_a_value_out_of_range_is_refused_and_the_field_named(
    kind: type[Any], given: dict[str, Any]
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        make_options(kind, given)
    assert caught.value.metadata["field"] == next(iter(given))


@pytest.mark.parametrize("kind", [ConnectOptions, ProducerOptions, ConsumerOptions])
def test_the_defaults_are_valid(kind: type[Any]) -> None:
    assert make_options(kind, {}) == kind()
