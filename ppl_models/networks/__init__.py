"""Networks: an architecture builds the guide's encoder and the model's matching decoder."""

from ppl_models.networks.base import Architecture, Decoder, Encoder
from ppl_models.networks.convolutional import ConvLadder
from ppl_models.networks.flows import AutoregressiveFlow, FlowDecoder
from ppl_models.networks.images import ConvGrid, ConvNet, ResNet, StridedConvNet
from ppl_models.networks.ladder import Ladder, MLPLadder
from ppl_models.networks.shared import MLP, SharedMLP

__all__ = [
    "MLP",
    "Architecture",
    "AutoregressiveFlow",
    "ConvGrid",
    "ConvLadder",
    "ConvNet",
    "Decoder",
    "Encoder",
    "FlowDecoder",
    "Ladder",
    "MLPLadder",
    "ResNet",
    "SharedMLP",
    "StridedConvNet",
]
