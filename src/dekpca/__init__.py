"""dekpca: decentralized kernel PCA. Data stays on its node, nodes talk to their neighbors only, and all nodes get the answer."""

from . import baselines, metrics, plot
from ._version import __version__
from .data import Rows
from .estimator import DecentralizedKernelPCA
from .network import Network, NetworkError
from .node_model import NodeModel
from .privacy.settings import Privacy
from .solvers.projection import PAPER, Projection

__all__ = [
    "PAPER",
    "DecentralizedKernelPCA",
    "Network",
    "NetworkError",
    "NodeModel",
    "Privacy",
    "Projection",
    "Rows",
    "__version__",
    "baselines",
    "metrics",
    "plot",
]


def __dir__() -> list[str]:
    """Completion shows the public names, not each module that was imported."""
    return __all__
