"""The `strand.toml` that a new lake gets: every key with its default, so that the file tells what can be set."""

DEFAULT_FILE = """\
# The settings of this lake. This file makes the folder a lake: commands look for it upwards from where they run.
# Every key can be set by an environment variable too: STRAND_<SECTION>_<KEY>, such as STRAND_SPARK_MASTER.

[lake]
ledger = {ledger}  # or postgresql://USER@HOST/DATABASE; a relative path starts at this file
warehouse = {warehouse}  # or file:///path, or s3://bucket/prefix

[spark]
# master = "local[*]"  # or spark://…, k8s://…, yarn
# conf = {{ "spark.driver.memory" = "4g" }}  # any Spark setting

[flush]
# max_bytes = "64MiB"  # the worker flushes a tail that is larger
# max_age = "60s"  # or older
# keyed_max_age = "15m"  # the same for a keyed table, unless it has 1,000 batches: nobody waits for its flush

[lease]
# ttl = "30s"  # a holder that is silent for this long may be replaced
# wait = "5m"  # how long a command waits for a holder that is alive

[s3]  # for s3:// addresses; credentials come from the environment or ~/.aws, as for the AWS tools
# endpoint = ""  # of a store that is not AWS
# region = ""  # else AWS_REGION, or what the bucket says
# path_style = "auto"  # true: the bucket is a part of the path; auto: so where there is an endpoint

[maintenance]
# every = "10m"  # how often the worker maintains a table that needs it; "off" is never
# grace = "15m"  # how long superseded snapshots and flushed batches stay readable
# fold_bytes = "64MiB"  # a keyed table's log is folded when so much of it is not in the state
# fold_percent = 10  # and more than this share of the state

[server]
# listen = "127.0.0.1:8400"
# max_body = "64MiB"  # the largest body of a request, before and after it is decompressed
# read_timeout = "30s"  # a body that arrives more slowly is given up
# max_requests = 16  # of one actor at the same time
# max_bytes = "4GiB"  # of one actor at the same time
# queue = 256  # requests that wait for the ledger, before others are told to come back later
# threads = 16  # that decode, validate and store

[worker]
# metrics = "off"  # or where the worker shows its metrics, such as "127.0.0.1:8401"
# attempts = 12  # a job that fails so often in a row is parked until `strand worker retry`
"""
