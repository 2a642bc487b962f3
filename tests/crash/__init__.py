"""A checkpoint survives whatever ends its process, and the machine under it.

`scenes.py` is the table of what writes checkpoints, `kills.py` ends it at every operation and at random times,
`power.py` is a model of a disk that loses power, `states.py` says what is at a target. `figures.py` sums them up.
"""
