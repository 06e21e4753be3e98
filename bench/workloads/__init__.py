"""What benchmarks run: workloads, faults and peers by name, tasks, and the right answers."""
