"""The services of a lake, one module for each subject, and the front door to them: `Lake`."""

from strandline.lake.door import Lake

__all__ = ["Lake"]
