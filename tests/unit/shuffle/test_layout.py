"""Names of objects: what they look like, and that they read back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durable_shuffle.serialization.errors import CorruptDataError, InvalidInputError
from durable_shuffle.shuffle.log.layout import (
    ConsumerPath,
    StagePath,
    check_name,
    consumers_prefix,
    default_task,
    job_log_prefix,
    parse_consumer_key,
    parse_segment_key,
    parse_stage_folder,
    slot_name,
)

HEX = st.text("0123456789abcdef", min_size=32, max_size=32)
PATH = StagePath("job", "stage", "f" * 32, "1" * 32)


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "_x", "0", "x" * 100])
def test_good_names_pass(name: str) -> None:
    """Letters, digits, '.', '_' and '-', up to 100."""
    assert check_name("job", name) == name


@pytest.mark.parametrize(
    "name", ["", ".hidden", "-x", "a/b", "..", "a b", "é", "x" * 101, "a\n", "a\0", "a%2f"]
)
def test_bad_names_are_refused_and_named(name: str) -> None:
    """The message says what the name is for and shows it."""
    with pytest.raises(InvalidInputError, match="stage name must be") as caught:
        check_name("stage name", name)
    assert repr(name) in str(caught.value)


def test_job_log_of_a_bad_name_is_refused() -> None:
    """A job's name cannot lead out of the root."""
    with pytest.raises(InvalidInputError, match="job"):
        job_log_prefix("../other")


def test_the_tree_is_as_documented() -> None:
    """Every kind of key, spelled out."""
    stage = f"job/stage-{'f' * 32}-{'1' * 32}/"
    assert job_log_prefix("job") == "job/log/"
    assert slot_name(7) == "0000000007"
    assert PATH.prefix == stage
    assert PATH.log_prefix == stage + "log/"
    assert PATH.producers_prefix == stage + "producers/"
    assert PATH.producer_log_prefix(3) == stage + "producers/p000003/"
    assert PATH.index_key("2" * 32) == stage + "index/" + "2" * 32
    segment = PATH.segment_key(3, "a" * 32, 1)
    assert segment.startswith(stage + "segments/")
    assert segment.endswith(f"/p000003-{'a' * 32}-1.seg")


@given(slots=st.lists(st.integers(0, 10**9), min_size=2, max_size=2))
def test_slot_names_sort_as_their_numbers(slots: list[int]) -> None:
    """Padded names keep the order."""
    low, high = sorted(slots)
    assert slot_name(low) <= slot_name(high)


@given(producer=st.integers(0, 10**7), attempt=HEX, number=st.integers(0, 10**6))
def test_segment_keys_read_back(producer: int, attempt: str, number: int) -> None:
    """Producer, attempt and number come back from the key."""
    key = PATH.segment_key(producer, attempt, number)
    assert parse_segment_key(key) == (producer, attempt, number)


def test_segment_keys_are_spread() -> None:
    """A thousand segments use most of the 256 hash prefixes."""
    spread = {PATH.segment_key(p, "a" * 32, 0).split("/")[-2] for p in range(1000)}
    assert len(spread) > 200
    assert all(len(part) == 2 for part in spread)


@pytest.mark.parametrize(
    "key",
    ["", "x", "p1-a-0.seg", f"p000001-{'A' * 32}-0.seg", f"p000001-{'a' * 32}-0.segx", "a/b.seg"],
)
def test_foreign_segment_names_are_corrupt(key: str) -> None:
    """What this library never wrote is refused by name."""
    with pytest.raises(CorruptDataError, match="not a segment name"):
        parse_segment_key(key)


@given(name=st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,20}", fullmatch=True), f=HEX, i=HEX)
def test_stage_folders_read_back(name: str, f: str, i: str) -> None:
    """Names may hold dashes and hexadecimal digits themselves."""
    path = StagePath("job", name, f, i)
    assert parse_stage_folder("job", path.prefix.split("/")[1]) == path


@pytest.mark.parametrize("folder", ["log", "consumers", "stage-abc", f"-{'f' * 32}-{'1' * 32}"])
def test_other_folders_are_no_stages(folder: str) -> None:
    """None, not an error: a job holds other folders too."""
    assert parse_stage_folder("job", folder) is None


CONSUMER = ConsumerPath("job", "totals", default_task("1" * 32, 7))
CONSUMER_FOLDER = f"job/consumers/totals/{'1' * 32}-k000007/"


def test_the_tree_of_consumers_is_as_documented() -> None:
    """Slots stand directly in the task's folder, what they name in folders below."""
    assert consumers_prefix("job") == "job/consumers/"
    assert CONSUMER.prefix == CONSUMER.log_prefix == CONSUMER_FOLDER
    assert CONSUMER.output_key("a" * 32) == f"{CONSUMER_FOLDER}outputs/{'a' * 32}"
    assert CONSUMER.state_key("b" * 32) == f"{CONSUMER_FOLDER}state/{'b' * 32}"


@pytest.mark.parametrize(
    ("key", "kind", "name"),
    [
        (CONSUMER.log_prefix + slot_name(3), "slot", "0000000003"),
        (CONSUMER.output_key("a" * 32), "output", "a" * 32),
        (CONSUMER.state_key("b" * 32), "state", "b" * 32),
    ],
)
def test_consumer_keys_read_back(key: str, kind: str, name: str) -> None:
    """Every key of a consumer gives back the task, the kind and the name."""
    assert parse_consumer_key(key) == (CONSUMER, kind, name)


@pytest.mark.parametrize(
    "key",
    [
        "job/consumers/totals/t/x",
        "job/consumers/totals/t/3",
        "job/consumers/totals/t/outputs/x",
        f"job/consumers/totals/t/other/{'a' * 32}",
        f"job/consumers/totals/t/outputs/{'a' * 32}/more",
        f"job/consumers/totals/{slot_name(0)}",
        f"job/consumers/-x/t/{slot_name(0)}",
        f"job/other/totals/t/{slot_name(0)}",
        "",
    ],
)
def test_odd_consumer_keys_are_refused(key: str) -> None:
    """A name that this library never gives is no consumer's object."""
    with pytest.raises(CorruptDataError, match="not a name of a consumer's object"):
        parse_consumer_key(key)


@pytest.mark.parametrize("bad", ["", "a/b", "..", "-x"])
def test_bad_consumer_names_are_refused(bad: str) -> None:
    """Neither the consumer's nor the task's name leads out of the job."""
    with pytest.raises(InvalidInputError, match="consumer must be"):
        ConsumerPath("job", bad, "task")
    with pytest.raises(InvalidInputError, match="task must be"):
        ConsumerPath("job", "totals", bad)
