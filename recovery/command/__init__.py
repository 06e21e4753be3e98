"""The two command planes of a pipeline: what is asked for, and the one order of what is done."""
