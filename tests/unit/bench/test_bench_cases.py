"""What the recovery benchmark runs, when faults happen, and what its verdict refuses."""

from dataclasses import replace

import pytest
from bench_figures import GOOD

from durable_shuffle.bench.matrix.figures import failures, summaries
from durable_shuffle.bench.matrix.matrix import RecoveryOptions, plan_steps
from durable_shuffle.bench.matrix.schedule import moment, schedule_text
from durable_shuffle.bench.matrix.spark_runner import next_session
from durable_shuffle.bench.peers.systems import PEERS
from durable_shuffle.bench.workloads.cases import objection, plan_cells
from durable_shuffle.bench.workloads.faults import FAULTS, WORKLOADS
from durable_shuffle.serialization.errors import InvalidInputError


def test_equal_seeds_give_equal_schedules() -> None:
    """The schedule is a function of the seed, in the middle of its phase, not constant."""
    drawn = set()
    for seed in range(50):
        at = moment(seed, "W4", "F2", 1, maps=8, reduces=10)
        assert at == moment(seed, "W4", "F2", 1, maps=8, reduces=10)
        assert 1 <= at.after < 10
        drawn.add(at.after)
    assert len(drawn) > 3
    assert schedule_text(7, [moment(7, "W4", "F2", 1, maps=8, reduces=10)]).count("\n") == 1
    assert moment(0, "W4", "F1", 0, maps=2, reduces=2).after == 1


def test_what_makes_no_sense_is_refused_with_a_sentence() -> None:
    """Every refused combination says why, and the durable peer meets every fault somewhere."""
    for workload in WORKLOADS:
        for fault in FAULTS:
            for peer in PEERS:
                why = objection(workload, fault, peer)
                assert why is None or len(why) > 20
    for fault in FAULTS:
        assert any(objection(w, fault, "durable") is None for w in WORKLOADS)
    cells, refused = plan_cells(["W4"], ["F5"], ["native"])
    assert [c.name for c in cells] == ["W4 F0 durable", "W4 F0 native", "W4 F5 durable"]
    assert [cell.name for cell, _ in refused] == ["W4 F5 native"]
    with pytest.raises(InvalidInputError, match="no fault is left"):
        plan_cells(["W4"], ["F3"], ["native"])
    with pytest.raises(InvalidInputError, match="unknown peer 'spork'"):
        plan_cells(["W4"], ["F2"], ["spork"])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"fault_fired": False}, "did not fire"),
        ({"rows_expected": 0, "rows_found": 0}, "the check is empty"),
        ({"rows_differing": 2}, "wrong rows"),
        ({"records_missing": 1}, "wrong rows"),
        ({"maps_again": 1}, "committed producers ran again"),
        ({"committed_again": 1}, "beside a COMMIT"),
        ({"fault": "F6"}, "was not noticed"),
        ({"fault": "F6", "detected": "a CRC", "maps_again": 2}, "2 producers ran again for one"),
        ({"peer": "native", "records_twice": 1}, "wrong rows"),
    ],
)
def test_each_check_can_fail(change: dict[str, object], told: str) -> None:
    """One thing wrong is one failure; nothing wrong is none."""
    assert failures([GOOD]) == []
    (failure,) = failures([replace(GOOD, **change)])  # type: ignore[arg-type]
    assert told in failure


def test_a_ledger_of_spark_may_hold_records_twice() -> None:
    """That is what W5 is there to show; the durable one may not."""
    ledger = replace(GOOD, workload="W5", fault="F3", records_twice=5, rows_differing=5)
    assert failures([replace(ledger, peer="native")]) == []
    assert len(failures([ledger])) == 1
    assert failures([]) == ["nothing ran"]


def test_peers_take_turns_whatever_session_they_need() -> None:
    """Alone, Spark's peers keep one session for all rounds; beside Dask, one per round."""
    for peers, sessions in ((["native"], 1), (["native", "dask"], 4)):
        options = RecoveryOptions(faults=("F2",), peers=tuple(peers), rounds=2)
        left, _ = plan_steps(options, plan_cells(["W4"], ["F2"], peers)[0])
        count, rounds = 0, []
        while left:
            head = next_session(left)
            assert len({s.session for s in head}) == 1
            left = [s for s in left if s not in head]
            rounds += [s.round for s in head]
            count += 1
        assert count == sessions
        assert rounds == sorted(rounds)


def test_ratios_are_of_one_round() -> None:
    """Medians over rounds of ratios within a round, not ratios of medians."""
    rounds = [(0, 1.0, 3.0), (1, 10.0, 20.0), (2, 2.0, 2.0)]
    figures = []
    for number, ours, theirs in rounds:
        figures.append(replace(GOOD, round=number, seconds=ours))
        figures.append(replace(GOOD, round=number, seconds=theirs, peer="native"))
    durable, native = summaries(figures)
    assert durable.ratio is None
    assert native.ratio == 2.0
    assert native.seconds_spread == (2.0, 20.0)
    assert durable.rounds == 3
