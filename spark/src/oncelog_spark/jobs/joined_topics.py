"""Records of two topics that have one key, joined as they come, within some time of each other.

    query = joined(left, right, within="10 minutes").writeStream.format("oncelog")...

The state of such a join is Spark's, in the checkpoint; each pair comes out once, with the positions
of both topics (`inputGroups` names both groups).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# How late a record may be, and still be joined.
LATE: Final = "10 minutes"


def joined(left: DataFrame, right: DataFrame, *, within: str = LATE) -> DataFrame:
    """Pairs of equal key whose timestamps are at most `within` apart: `key`, and as `value` a JSON
    object of both values as text."""
    from pyspark.sql import functions as F

    one = left.selectExpr("key", "cast(value as string) as left", "timestamp as left_time")
    other = right.selectExpr(
        "key as other_key", "cast(value as string) as right", "timestamp as right_time"
    )
    pairs = one.withWatermark("left_time", within).join(
        other.withWatermark("right_time", within),
        F.expr(
            f"key = other_key and right_time between left_time - interval {within} "
            f"and left_time + interval {within}"
        ),
    )
    return pairs.select("key", F.to_json(F.struct("left", "right")).alias("value"))
