"""A referee from outside, ckpt-chaos, kills a plain training script and judges what a resume makes of it."""
