"""Rows: their columns, their owners, files of rows, and checks."""

from .checks import MISSING, Missing
from .columns import one_hot
from .formats import DataError
from .reading import Data, Roles, column_names, remembered
from .rows import Rows, read

__all__ = ["MISSING", "Data", "DataError", "Missing", "Roles", "Rows", "column_names", "one_hot", "read", "remembered"]
