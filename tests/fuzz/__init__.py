"""Arrow streams that lie, by the hundred thousand: `python -m tests.fuzz`."""
