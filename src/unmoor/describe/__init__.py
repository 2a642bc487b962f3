"""path -> Catalog: what a file holds, told without running it and without reading its tensor data.

Imports errors, filing, values and the standard library; never torch.
"""

from .file import describe_file
from .folder import describe_path

__all__ = ["describe_file", "describe_path"]
