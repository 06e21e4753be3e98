"""SIGTERM ends a command as Ctrl-C does: what it started is cleaned up."""

import signal
import subprocess
import sys

PROGRAM = """
import sys, threading
import durable_shuffle.jobs.cli.app as commands

def app():
    try:
        print("running", flush=True)
        threading.Event().wait(600)
    finally:
        print("cleaned up", flush=True)

commands.app = app
from durable_shuffle.jobs.cli import main
main()
"""


def test_a_terminated_command_cleans_up() -> None:
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    process.send_signal(signal.SIGTERM)
    rest, _ = process.communicate(timeout=600)
    assert (rest, process.returncode) == ("cleaned up\n", 128 + signal.SIGTERM)
