"""`python -m durable_shuffle.jobs.cli` is the command `durable-shuffle`."""

from durable_shuffle.jobs.cli import main

if __name__ == "__main__":
    main()
