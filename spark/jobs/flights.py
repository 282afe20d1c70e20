"""The flights job, for spark-submit and for reading: the code is in `oncelog_spark.jobs`."""

import sys

from oncelog_spark.jobs.flights import main

if __name__ == "__main__":
    sys.exit(main())
