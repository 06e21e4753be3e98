"""Logs of a stage that lost their last record: `verify` says so where something else proves it."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from littered_job import StoredConsumer
from stored_job import stored_stage
from whole_index import index_of_commits

from durable_shuffle.shuffle.base.clock import RandomIds
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.producer_log import commit_attempt, read_producer
from durable_shuffle.shuffle.log.stage import StageHandle, read_state
from durable_shuffle.shuffle.repair.compaction import compact_stage
from durable_shuffle.shuffle.seal.rewrite import replace_commits, sealed_commits
from durable_shuffle.shuffle.seal.seal import seal_stage
from durable_shuffle.shuffle.storage.local import LocalStorage

Run = Callable[..., Any]


def verified(job: Any, run: Run, *options: str) -> tuple[int, dict[str, str], dict[str, Any]]:
    """Return the exit code, what was expected by key, and the document of the job."""
    result = run("verify", job.url, "nightly", "--json", *options)
    document = json.loads(result.stdout)["jobs"][0]
    return result.exit_code, {f["key"]: f["expected"] for f in document["findings"]}, document


def an_hour_old(folder: Path) -> None:
    """Let the objects in a folder be as old as what a driver left that died."""
    for one in folder.iterdir():
        os.utime(one, (one.stat().st_mtime - 3600,) * 2)


def sealed_again(stage: StageHandle) -> None:
    """What a driver does that runs the job again."""
    commits = {p: read_producer(stage.producer_log(p)).commits()[0] for p in range(3)}
    ids = RandomIds()
    seal_stage(stage, commits, producers=3, generation=1, record_id=ids.new_id())  # type: ignore[arg-type]


def test_a_lost_seal_is_found(job: Any, run: Run) -> None:
    """All have committed and an index is there. Running the job again seals it; the older index
    is left and is no finding."""
    path = job.orders.path
    key = f"{path.log_prefix}0000000001"
    Path(job.url, key).unlink()
    assert verified(job, run)[:2] == (0, {}), "a driver may be about to put it"
    an_hour_old(Path(job.url, path.index_prefix))
    status, found, _ = verified(job, run)
    assert (status, found) == (1, {key: "SEAL"})
    status, found, document = verified(job, run, "--repair")
    assert (status, found) == (1, {key: "SEAL"})
    assert "run the job again" in document["repairs"][0]["why"]
    sealed_again(job.orders)
    assert verified(job, run)[:2] == (0, {})


def test_a_lost_commit_of_an_index_is_found(job: Any, run: Run) -> None:
    """An index is made of every producer's COMMIT."""
    path = job.orders.path
    Path(job.url, path.log_prefix, "0000000001").unlink()
    key = f"{path.producer_log_prefix(1)}0000000000"
    Path(job.url, key).unlink()
    assert verified(job, run)[:2] == (1, {key: "COMMIT"})


def test_a_lost_commit_that_seal_names_is_found(job: Any, run: Run) -> None:
    """The last slot of a producer's log."""
    key = f"{job.orders.path.producer_log_prefix(1)}0000000000"
    Path(job.url, key).unlink()
    status, found, _ = verified(job, run)
    assert (status, list(found)) == (1, [key])
    assert verified(job, run, "--repair")[0] == 1


def rewritten(stage: StageHandle, url: str) -> str:
    """Repair producer 0 from another copy; return the key of REPLACE."""
    ids, state = RandomIds(), read_state(stage)
    assert state.seal is not None
    commits = sealed_commits(stage, state.seal, Settings())
    commit, attempt = commits[0].commit, ids.new_id()
    for info in commit.segments:
        data = stage.storage.read(stage.path.segment_key(0, commit.record_id, info.number))
        stage.storage.put(stage.path.segment_key(0, attempt, info.number), [data])
    again = type(commit)(
        attempt,
        commit.producer,
        commit.producers,
        commit.rows,
        commit.memory_bytes,
        commit.segments,
        commit.extents,
    )
    won = commit_attempt(stage.producer_log(0), again, after=commits[0].slot)
    replace_commits(
        stage, state, commits, {0: won}, generation=1, record_id=ids.new_id(), cause="test"
    )
    return stage.log().key(state.next_slot)


def test_a_lost_replace_is_found_and_settled(job: Any, run: Run) -> None:
    """Its index is of another COMMIT than SEAL names. `--repair` settles that it does not count:
    then all is intact, and `gc` takes the index."""
    key = rewritten(job.orders, job.url)
    assert verified(job, run)[:2] == (0, {})
    Path(job.url, key).unlink()
    assert verified(job, run)[:2] == (1, {key: "REPLACE"})
    status, found, document = verified(job, run, "--repair")
    assert (status, found) == (0, {})
    assert document["repairs"][0]["outcome"] == "repaired"
    assert verified(job, run)[:2] == (0, {})
    assert run("gc", job.url, "nightly", "--delete", "--older-than", "0s").exit_code == 0
    assert len(list(Path(job.url, job.orders.path.index_prefix).iterdir())) == 1
    assert verified(job, run)[:2] == (0, {})


def consumed(job: Any, stage: StageHandle) -> None:
    """Read one subpartition to its end."""
    consumer = StoredConsumer(LocalStorage(job.url), stage, 0, "a", RandomIds())
    consumer.open()
    assert consumer.ack({0: 10, 2: 6}, finish=True)


def test_a_consumer_proves_the_seal_that_it_read(job: Any, run: Run) -> None:
    """Also where no index is left."""
    path = job.orders.path
    consumed(job, job.orders)
    assert verified(job, run)[:2] == (0, {})
    key = f"{path.log_prefix}0000000001"
    Path(job.url, key).unlink()
    for index in Path(job.url, path.index_prefix).iterdir():
        index.unlink()
    status, found, _ = verified(job, run)
    assert (status, found) == (1, {key: "the SEAL or REPLACE by which a consumer reads"})


def test_a_consumer_proves_a_stage_that_the_job_log_lost(job: Any, run: Run) -> None:
    """The stage's folder is gone, and the record that named it."""
    stage = stored_stage(job.log, LocalStorage(job.url), job="nightly", name="last")
    consumed(job, stage)
    shutil.rmtree(Path(job.url, stage.path.prefix))
    log = sorted(Path(job.url, "nightly", "log").iterdir())
    log[-1].unlink()
    status, found, _ = verified(job, run)
    assert (status, found) == (1, {"nightly/log/": "a STAGE record"})
    assert verified(job, run, "--repair")[0] == 1


def test_a_stage_that_the_job_log_lost_is_no_typing_error(job: Any, run: Run) -> None:
    """Whoever names it is told that the log lost its end, and where the data is."""
    path = job.orders.path
    log = sorted(Path(job.url, "nightly/log").iterdir())
    last = max(n for n, slot in enumerate(log) if path.incarnation.encode() in slot.read_bytes())
    for slot in log[last:]:
        slot.unlink()
    result = run("cat", job.url, "nightly", path.name)
    assert result.exit_code == 1
    assert "the log of job 'nightly' lost its end" in result.stderr
    assert path.prefix in result.stderr
    assert run("cat", job.url, "nightly", "nothing").exit_code == 2


@pytest.mark.parametrize("when", ["before SEAL", "of a compaction", "damaged"])
def test_what_crashes_leave_is_no_finding(job: Any, run: Run, when: str) -> None:
    """An index like the one that counts, one of a compaction that never counted, one that is not
    whole: no reader misses them."""
    stage, ids = job.orders, RandomIds()
    state = read_state(stage)
    assert state.seal is not None
    key = stage.path.index_key(ids.new_id())
    if when == "of a compaction":
        compact_stage(stage, ids=ids, generation=1, settings=Settings())
        assert read_state(stage).compact is not None
        Path(job.url, stage.log().key(state.next_slot)).unlink()
    else:
        commits = [one.commit for one in sealed_commits(stage, state.seal, Settings())]
        index = index_of_commits(commits, stage.describe.partitions, key=key)[key]
        stage.storage.put(key, [index[:-9] if when == "damaged" else index])
    assert verified(job, run)[:2] == (0, {})


def test_a_seal_that_comes_meanwhile_is_no_finding(
    job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver is between its index and SEAL when `verify` looks, and done when it looks again."""
    from durable_shuffle.shuffle.verify import stage as verify_stage

    path = job.orders.path
    log = Path(job.url, path.log_prefix, "0000000001")
    seal = log.read_bytes()
    log.unlink()
    real = verify_stage.lost_ends

    def late(*arguments: Any) -> Any:
        log.write_bytes(seal)
        return real(*arguments)

    monkeypatch.setattr(verify_stage, "lost_ends", late)
    found = verify_stage.check_stage(LocalStorage(job.url), path, Settings(), released=False)
    assert found.findings == ()
