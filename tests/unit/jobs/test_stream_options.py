"""Options of the data source: a wrong one is refused with the right one named."""

import pytest

from durable_shuffle.jobs.streaming.options import read_options, write_options
from durable_shuffle.serialization.errors import InvalidInputError

PLACE = {"url": "/tmp/x", "job": "j", "stage": "s"}


def test_names_are_found_in_any_case_and_path_is_the_url() -> None:
    """Spark hands options over in lower case; `load(path)` gives a path."""
    options = {"path": "/tmp/x", "JOB": "j", "Stage": "s", "maxrecordspertrigger": "5"}
    found = read_options(options, stream=True)
    assert (found.place.url, found.place.job, found.most_rows) == ("/tmp/x", "j", 5)
    found_write = write_options({**PLACE, "keys": "a, b", "checkpointLocation": "/tmp/c"})
    assert (found_write.keys, found_write.producer) == (("a", "b"), 0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"maxRecordPerTrigger": "5"}, "did you mean 'maxRecordsPerTrigger'?"),
        ({"startingOffset": "latest"}, "did you mean 'startingOffsets'?"),
        ({"bananas": "5"}, "unknown option 'bananas': a reader of format"),
        ({"keys": "k"}, "option 'keys' is not one of a reader"),
        ({"maxRecordsPerTrigger": "0"}, "must be a whole number from 1 on, found='0'"),
        ({"maxBytesPerTrigger": "many"}, "option 'maxBytesPerTrigger' must be a whole number"),
        ({"maxWaitMillis": "-1"}, "option 'maxWaitMillis' must be a whole number from 0 on"),
        ({"consumer": "a/b"}, "consumer must be 1 to"),
        ({"consumers": "a,b"}, "must name this one"),
        ({"columns": "a,a"}, "names one thing twice"),
        ({"storageOptions": "secret"}, "option 'storageOptions' must be a JSON object"),
        ({"path": "/tmp/y"}, "two names of one thing"),
        ({"url": "hop"}, "option 'url' must be absolute"),
        ({"job": ""}, "option 'job' is missing"),
    ],
)
def test_bad_reader_options(options: dict[str, str], words: str) -> None:
    """Each message says what to give instead; none shows what may be a credential."""
    with pytest.raises(InvalidInputError) as refused:
        read_options({**PLACE, **options}, stream=True)
    assert words in str(refused.value)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"partition": "4"}, "did you mean 'partitions'?"),
        ({"startingOffsets": "latest"}, "option 'startingOffsets' is not one of a writer"),
        ({"partitions": "-1"}, "option 'partitions' must be a whole number from 1 on"),
    ],
)
def test_bad_writer_options(options: dict[str, str], words: str) -> None:
    """As for readers."""
    with pytest.raises(InvalidInputError) as refused:
        write_options({**PLACE, **options})
    assert words in str(refused.value)


def test_credentials_are_not_shown() -> None:
    """What an option object looks like in a log says nothing of them."""
    secret = '{"key": "hidden"}'
    found = read_options({**PLACE, "url": "s3://b/x", "storageOptions": secret}, stream=False)
    assert "hidden" not in repr(found)
