"""The main job on real data: ``python -m kerolox.demo``, or ``make demo``.

The 336,776 flights that left New York in 2013 go from a producer through a broker to a consumer
group. Structured Streaming writes them to Parquet. Spark answers a question about them. Every
stage counts; the demo fails when two counts differ.
"""
