"""Which subpartitions each reading task takes. Pure."""

TASKS_PER_CORE = 2
"""Fewer tasks than this per core would leave cores idle behind a slow one."""


def reading_tasks(
    partitions: int, memory_bytes: int, *, together_bytes: int, cores: int
) -> tuple[range, ...]:
    """Return the subpartitions of each task, neighbours together where they are small.

    Args:
        memory_bytes: of all partitions, uncompressed.
        together_bytes: how much one task shall read at least, if there is that much; 0 for one
            partition per task.
        cores: tasks that run at once; 0 if unknown, which gives one partition per task.
    """
    each = 1
    if together_bytes and cores:
        fitting = together_bytes * partitions // max(1, memory_bytes)
        most = -(-partitions // (TASKS_PER_CORE * cores))
        each = max(1, min(fitting, most))
    return tuple(range(k, min(k + each, partitions)) for k in range(0, partitions, each))
