"""A demonstration that can fail: `make demo`, or `python -m strandline.demo [DIR]`.

Four processes append generated agent messages to a lake while a fifth flushes them through Spark. One writer and one
flush are killed on the way. What was acked is written down outside the lake, so the figures at the end compare two
records that know nothing of each other; the demonstration exits non-zero when they disagree.
"""
