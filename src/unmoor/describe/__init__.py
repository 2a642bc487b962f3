"""path -> Catalog: what a file holds, told without running it and without reading its tensor data.

Imports errors, filing, values and the standard library; never torch.
"""

from .file import describe_file

__all__ = ["describe_file"]
