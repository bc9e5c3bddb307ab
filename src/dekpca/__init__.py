"""dekpca: decentralized kernel PCA. Data stays on its node, nodes talk to their neighbors only, and all nodes get the answer."""

from . import baselines, metrics
from ._version import __version__
from .estimator import DecentralizedKernelPCA
from .network import Network, NetworkError
from .node_model import NodeModel
from .options import PAPER

__all__ = [
    "PAPER",
    "DecentralizedKernelPCA",
    "Network",
    "NetworkError",
    "NodeModel",
    "__version__",
    "baselines",
    "metrics",
]
