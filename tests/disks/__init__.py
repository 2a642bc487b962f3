"""Bad disks: what the system refuses, cuts short or changes meanwhile, for every verb that writes or reads."""
