"""A demonstration that can fail: `make demo`, or `python -m examples.demo [DIR]`.

Four processes append generated agent messages to a lake. A worker flushes them through Spark, forwards them to a second
lake over HTTP, and writes them to Parquet files in a folder. A writer is killed on the way, and the worker twice:
inside a flush, and inside a delivery. What was acked is written down outside the lake, so the figures at the end
compare records that know nothing of each other; the demonstration exits non-zero when they disagree.
"""
