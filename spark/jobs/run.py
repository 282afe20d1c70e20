"""The runner, for spark-submit: `run.py run --transform module:function --from t --to u ...`"""

from oncelog_spark.jobs.runner import main

if __name__ == "__main__":
    main()
