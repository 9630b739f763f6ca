"""Types of sinks: a file for each, and a line for each in `strandline.sinks.registry`."""
