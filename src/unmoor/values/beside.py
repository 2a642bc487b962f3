"""What `unmoor.save` writes beside torch's own keys of an optimizer state dict, where load_state_dict does not look.

torch's own place for names, `param_names` in each group, would be left in the groups of whatever optimizer loads the
file, and an optimizer with names refuses `add_param_group` without them.
"""

from __future__ import annotations

from typing import Final

__all__ = ["FROZEN", "NAMES"]

NAMES: Final = "param_names"
"""The canonical names of the parameters, a list for each group."""

FROZEN: Final = "frozen"
"""State of parameters that were in the model and not in the optimizer, as a state dict whose ids are names."""
