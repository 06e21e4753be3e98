"""Assigns subpartitions to reading tasks. Pure."""

TASKS_PER_CORE = 2
"""With fewer tasks per core, cores would be idle while they wait for a slow task."""


def reading_tasks(
    partitions: int, memory_bytes: int, *, together_bytes: int, cores: int
) -> tuple[range, ...]:
    """Return the subpartitions of each task; small neighbours go to the same task.

    Args:
        memory_bytes: uncompressed size of all partitions together.
        together_bytes: about as much as one task should read; 0 for one partition per task.
        cores: tasks that run at once; 0 if unknown, which means one partition per task.
    """
    each = 1
    if together_bytes and cores:
        fitting = together_bytes * partitions // max(1, memory_bytes)
        most = -(-partitions // (TASKS_PER_CORE * cores))
        each = max(1, min(fitting, most))
    return tuple(range(k, min(k + each, partitions)) for k in range(0, partitions, each))
