"""From rounds to figures and tables: medians, ratios, percentiles, aims."""

from __future__ import annotations

import pytest

from benchmarks import tables
from benchmarks.measure import RECORDS_PER_S, Result, Used, credited
from benchmarks.observer import Usage
from benchmarks.plots import curve, sizes
from benchmarks.sides import KAFKA, OURS, SYNCED, Measured
from benchmarks.summary import (
    Figures,
    Spread,
    figures,
    of_round,
    percentile,
    ratio,
    reached,
    summarized,
)
from benchmarks.workloads import WORKLOADS


def used(client_s: float = 1.0, server_s: float = 2.0, foreign_s: float = 0.0) -> Used:
    servers = {"leader": Usage(server_s, 30)}
    return Used(Usage(client_s, 10), servers, foreign_s, capacity_s=10.0)


def rate(per_second: int, *, server_s: float = 2.0, foreign_s: float = 0.0) -> Measured:
    return Measured(Result(per_second * 5, 5.0), used(server_s=server_s, foreign_s=foreign_s))


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [
        ([7.0], 50, 7.0),
        ([7.0], 99, 7.0),
        ([1.0, 2.0, 3.0, 4.0], 50, 2.0),
        ([4.0, 3.0, 2.0, 1.0], 100, 4.0),
        ([float(each) for each in range(1, 101)], 99, 99.0),
        ([float(each) for each in range(1, 1001)], 99, 990.0),
    ],
)
def test_a_percentile_is_the_least_that_so_many_do_not_exceed(
    values: list[float], percent: float, expected: float
) -> None:
    assert percentile(values, percent) == expected


def test_cpu_and_switches_are_those_of_client_and_servers_per_operation() -> None:
    found = of_round(Measured(Result(operations=100, seconds=2.0), used()))
    assert found == {RECORDS_PER_S: 50.0, "cpu_us": 30_000.0, "switches": 0.4}


def test_megabytes_are_shown_of_large_records_alone() -> None:
    small = Result(operations=10, seconds=1.0, value_bytes=1_000)
    large = Result(operations=10, seconds=1.0, value_bytes=10_240)
    assert "mb_per_s" not in of_round(Measured(small, used()))
    assert of_round(Measured(large, used()))["mb_per_s"] == pytest.approx(0.01024)


def test_a_round_in_which_nothing_was_done_has_no_figures() -> None:
    assert of_round(Measured(Result(operations=0, seconds=1.0), used())) == {}


def test_latencies_give_percentiles_in_ms() -> None:
    result = Result(operations=2, seconds=1.0, latencies_s=(0.001, 0.003))
    found = of_round(Measured(result, used()))
    assert (found["p50_ms"], found["p99_ms"]) == (1.0, 3.0)


def test_the_spread_is_over_rounds() -> None:
    found = figures([rate(30), rate(10), rate(20)])
    assert found.units[RECORDS_PER_S] == Spread(median=20, least=10, most=30)


def test_foreign_is_a_share_of_all_cores_over_all_rounds() -> None:
    found = figures([rate(1, foreign_s=4.0), rate(1, foreign_s=0.0)])
    assert found.foreign_share == pytest.approx(0.2)


def test_roles_are_weighed_by_operations_over_all_rounds() -> None:
    found = figures([rate(1, server_s=2.0), rate(1, server_s=4.0)])
    assert found.by_role["client"] == pytest.approx((200_000.0, 2.0))
    assert found.by_role["leader"] == pytest.approx((600_000.0, 6.0))


def test_workers_are_the_clients_and_not_foreign() -> None:
    found = credited(used(client_s=1.0, foreign_s=3.0), Usage(2.5, 40))
    assert (found.client, found.foreign_s) == (Usage(3.5, 50), 0.5)
    # Two clocks: never below nothing.
    assert credited(used(foreign_s=1.0), Usage(2.5, 40)).foreign_s == 0.0


def test_a_ratio_is_of_medians_and_absent_where_one_is() -> None:
    summary = summarized({("a", OURS): [rate(30)], ("a", KAFKA): [rate(20)]})
    assert ratio(summary, ("a", OURS), ("a", KAFKA), RECORDS_PER_S) == 1.5
    assert ratio(summary, ("a", OURS), ("a", SYNCED), RECORDS_PER_S) is None
    assert ratio(summary, ("a", OURS), ("a", KAFKA), "p50_ms") is None


def test_of_rates_more_is_better_and_of_all_else_less() -> None:
    assert reached(RECORDS_PER_S, 1.5, 1.4)
    assert not reached(RECORDS_PER_S, 1.3, 1.4)
    assert reached("p50_ms", 0.5, 0.6)
    assert not reached("cpu_us", 0.7, 0.6)


PLAIN = [WORKLOADS["plain-100"], WORKLOADS["plain-100-6p"]]


def test_a_row_has_our_spread_and_the_median_and_ratio_of_each_other_side() -> None:
    summary = summarized(
        {
            ("plain-100", OURS): [rate(3_000), rate(1_000), rate(2_000)],
            ("plain-100", KAFKA): [rate(1_000, foreign_s=5.0)],
            ("plain-100", SYNCED): [rate(500)],
            ("plain-100-6p", OURS): [rate(1_000)],
        }
    )
    sides = [OURS, KAFKA, SYNCED]
    assert tables.columns(sides, OURS) == (
        *("workload", "unit", "median", "min", "max", "ratio"),
        *("kafka", "to kafka", "kafka synced", "to kafka synced", "foreign"),
    )
    first, *_, other = [
        row for row in tables.rows(summary, PLAIN, sides, OURS) if row[1] == RECORDS_PER_S
    ]
    assert first == (
        *("plain-100", RECORDS_PER_S, "2,000", "1,000", "3,000", ""),
        *("1,000", "2.00", "500.00", "4.00", "50%"),
    )
    # Its ratio is to the workload that the table names; it has no twin.
    assert other[5:] == ("0.50", "", "", "", "", "0%")


def test_without_kafka_there_are_no_columns_of_it() -> None:
    summary = summarized({("plain-100", OURS): [rate(1)]})
    assert "kafka" not in tables.columns([OURS], OURS)
    lengths = {len(row) for row in tables.rows(summary, PLAIN, [OURS], OURS)}
    assert lengths == {len(tables.columns([OURS], OURS))}


def test_an_aim_is_reached_or_missed_and_says_nothing_where_it_was_not_measured() -> None:
    summary = summarized(
        {
            ("plain-100", OURS): [rate(1_500)],
            ("plain-100", KAFKA): [rate(1_000)],
            ("every-10ms", OURS): [rate(1_000)],
            ("keys-100", OURS): [rate(1_500, foreign_s=1.1)],
            ("keys-100", KAFKA): [rate(1_000)],
        }
    )
    rows = tables.aim_rows(summary, list(WORKLOADS.values()))
    assert rows == [
        ("W1", "plain-100", RECORDS_PER_S, "Kafka", "1.4", "1.50", "reached", "0%"),
        (
            *("W1", "keys-100", RECORDS_PER_S, "Kafka", "1.4", "1.50"),
            *("unsure (reached beside others)", "11%"),
        ),
        ("W2", "every-10ms", RECORDS_PER_S, "plain-100", "0.9", "0.67", "**missed**", "0%"),
    ]


def test_markdown_has_a_line_for_each_row() -> None:
    assert tables.markdown(("a", "b"), [("1", "2")]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.0, "0.00"), (0.0123, "0.012"), (0.5, "0.50"), (999.4, "999.40"), (1234.5, "1,234")],
)
def test_figures_are_shown_with_as_much_as_is_known(value: float, expected: str) -> None:
    assert tables.shown(value) == expected


def test_a_curve_begins_with_all_and_keeps_the_whole_tail() -> None:
    values = [each / 1000 for each in range(10_000)]
    times, shares = curve(values)
    assert (times[0], shares[0]) == (0.0, 1.0)
    assert times[-100:] == pytest.approx([float(each) for each in range(9_900, 10_000)])
    assert shares[-1] == pytest.approx(1 / 10_000)
    assert len(times) < 1_000


def test_sizes_of_transactions_come_in_order_and_from_like_shapes() -> None:
    summary = {
        (name, OURS): Figures({RECORDS_PER_S: Spread(value, value, value)}, 0.0, {})
        for name, value in {"of-750": 3.0, "of-1": 1.0, "of-750-1k": 9.0, "of-75": 2.0}.items()
    }
    assert sizes(summary, OURS) == [(1, 1.0), (75, 2.0), (750, 3.0)]
