"""The arrays behind the explorer of a fitted run."""

from facetvae.explorer.explorer import Axis, Explorer
from facetvae.explorer.pictures import Pictures

__all__ = ["Axis", "Explorer", "Pictures"]
