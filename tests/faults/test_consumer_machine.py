"""The shipped state machine of consumers, in memory and on local files."""

import shutil
import tempfile

import pytest
from consumer_machine import ConsumerMachine
from hypothesis import settings

from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.storage.local import LocalStorage

TestInMemory = ConsumerMachine.TestCase
TestInMemory.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, print_blob=True
)
TestInMemory.pytestmark = [
    pytest.mark.requirement(f"R-F135-{n}") for n in (6, 15, 16, 17, 21, 27, 28)
]


class OnFiles(ConsumerMachine):
    """The same on a folder: how third parties run it on their storage."""

    def make_storage(self) -> Storage:
        self.folder = tempfile.mkdtemp()
        return LocalStorage(self.folder)

    def teardown(self) -> None:
        super().teardown()
        shutil.rmtree(self.folder, ignore_errors=True)


TestOnFiles = OnFiles.TestCase
TestOnFiles.settings = settings(max_examples=3, stateful_step_count=20, deadline=None)


@pytest.mark.soak
class TestLong(ConsumerMachine.TestCase):
    """Many more."""

    settings = settings(max_examples=5000, stateful_step_count=80, deadline=None)
