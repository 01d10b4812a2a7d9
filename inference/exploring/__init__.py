"""What the explorer shows of a fitted run, as arrays."""

from inference.exploring.explorer import Axis, Cluster, Explorer, Knowledge, Moved
from inference.exploring.pictures import Pictures

__all__ = ["Axis", "Cluster", "Explorer", "Knowledge", "Moved", "Pictures"]
