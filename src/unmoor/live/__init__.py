"""The live run: the only importer of torch beside the distributed engine."""
