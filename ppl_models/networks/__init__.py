"""Networks: an architecture is a recipe that builds a matching encoder (for the guide) and decoder (for the model)."""

from ppl_models.networks.base import Architecture, Decoder, Encoder
from ppl_models.networks.ladder import MLPLadder
from ppl_models.networks.shared import SharedMLP

__all__ = ["Architecture", "Decoder", "Encoder", "MLPLadder", "SharedMLP"]
