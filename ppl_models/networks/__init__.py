"""Networks: an architecture builds the guide's encoder and the model's matching decoder."""

from ppl_models.networks.base import Architecture, Decoder, Encoder, NoEncoder
from ppl_models.networks.convnet import ConvNet
from ppl_models.networks.convolutional import ConvLadder
from ppl_models.networks.flows import AutoregressiveFlow, FlowDecoder
from ppl_models.networks.grid import ConvGrid
from ppl_models.networks.ladder import Ladder, MLPLadder
from ppl_models.networks.plain import MLP
from ppl_models.networks.resnet import ResNet
from ppl_models.networks.shared import SharedMLP
from ppl_models.networks.strided import StridedConvNet

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
    "NoEncoder",
    "ResNet",
    "SharedMLP",
    "StridedConvNet",
]
