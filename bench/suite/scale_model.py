"""What a shuffle on an object store costs: requests, dollars and seconds, before and after merging.

    python bench/suite/scale_model.py                     # 1 TB to 1 PB, M and R up to 50,000
    python bench/suite/scale_model.py --tb 10 --producers 5000 --partitions 2000

Strategy: the formulas of docs/internals/storage.md, with every extent equally long. A test holds
the request counts to counted ones at small scale. Dollars are requests at the list prices of S3
Standard in us-east-1; seconds are requests by latency (w), requests by S3's rate per prefix (r) or
bytes by bandwidth (b), whichever takes longest, over all cores at once. Neither retries nor
computing are in it.
"""

import argparse
import math
import sys
from dataclasses import dataclass

from durable_shuffle.shuffle.log.extent_table import MAX_EXTENTS
from durable_shuffle.shuffle.repair.compaction import group_bytes
from durable_shuffle.shuffle.seal.index import WHOLE_INDEX_BYTES
from durable_shuffle.shuffle.storage.range_plan import RUN_BYTES

TB = 10**12
INDEX_ENTRY_BYTES = 9
"""As measured (`bench_index.py`)."""
DOLLARS_PER_PUT = 0.005 / 1000
DOLLARS_PER_GET = 0.0004 / 1000
DOLLARS_PER_GB_DAY = 0.023 / 30
PUTS_PER_SECOND, GETS_PER_SECOND = 3500, 5500
"""Of one prefix of S3."""


@dataclass(frozen=True, slots=True)
class Requests:
    """PUT covers all writes; multipart uploads are not counted apart."""

    puts: int = 0
    gets: int = 0

    @property
    def dollars(self) -> float:
        return self.puts * DOLLARS_PER_PUT + self.gets * DOLLARS_PER_GET

    @property
    def total(self) -> int:
        return self.puts + self.gets


@dataclass(frozen=True, slots=True)
class Shuffle:
    """M producers, R partitions, all extents equally long."""

    producers: int
    partitions: int
    data_bytes: int
    """Of all segments, as stored."""
    segment_bytes: int = 64 << 20
    """What a producer's memory encodes to; also a compaction's."""
    cores: int = 1000
    requests_at_once: int = 16
    latency_seconds: float = 0.03
    core_bytes_per_second: float = 100e6
    prefixes: int = 1
    """That the store serves apart. A new bucket has one; S3 splits it under load, for which the
    names of segments are spread over 256."""

    @property
    def segments(self) -> int:
        """Of one producer."""
        return max(1, math.ceil(self.data_bytes / self.producers / self.segment_bytes))

    @property
    def extents(self) -> int:
        """Of all producers."""
        return self.producers * self.partitions * self.segments

    @property
    def partition_bytes(self) -> float:
        return self.data_bytes / self.partitions

    @property
    def index_bytes(self) -> int:
        return self.extents * INDEX_ENTRY_BYTES

    @property
    def index_reads(self) -> int:
        """Of one reader: the entry and the slice, or all of a small index."""
        return 2 if self.index_bytes > WHOLE_INDEX_BYTES else 1

    @property
    def groups(self) -> int:
        """Of producers, in a compaction."""
        whole = self.producers * self.segments
        wide = group_bytes(self.data_bytes, whole, self.partitions, self.segment_bytes)
        return math.ceil(self.data_bytes / wide)

    @property
    def tiles(self) -> int:
        """Of one group: as many segments does a compaction write for it."""
        return math.ceil(self.data_bytes / self.groups / self.segment_bytes)

    def write(self) -> Requests:
        """All producers: look at the log, write segments, COMMIT."""
        return Requests(self.producers * (self.segments + 1), self.producers)

    def seal(self) -> Requests:
        """The driver: each producer's COMMIT and the empty slot behind it, the stage log."""
        return Requests(2, 2 * self.producers + 1)

    def read(self) -> Requests:
        """Every partition once: the index's entry and slice, one range per extent."""
        return Requests(0, self.index_reads * self.partitions + self.extents)

    def compact(self) -> Requests:
        """Two looks at the stage log, the index, and per tile one range of each segment in it:
        neighbouring partitions are neighbours there. Then the tiles, the new index, COMPACT."""
        ranges = self.producers * self.segments * min(self.tiles, self.partitions)
        return Requests(self.groups * self.tiles + 2, 2 + self.index_reads + ranges)

    def read_compacted(self) -> Requests:
        """The index's entry and slice, then of each group runs of up to 8 MiB."""
        runs = math.ceil(self.partition_bytes / self.groups / min(RUN_BYTES, self.segment_bytes))
        return Requests(0, self.partitions * (self.index_reads + self.groups * runs))

    def seconds(self, requests: Requests, data_bytes: float) -> tuple[float, str]:
        """Time over all cores, or over as many as there are requests for; and what bounds it."""
        at_once = min(self.cores * self.requests_at_once, max(1, requests.total))
        rates = requests.gets / GETS_PER_SECOND, requests.puts / PUTS_PER_SECOND
        return max(
            (requests.total * self.latency_seconds / at_once, "w"),
            (max(rates) / self.prefixes, "r"),
            (data_bytes / (self.cores * self.core_bytes_per_second), "b"),
        )

    @property
    def reads_to_break_even(self) -> float:
        """How often the stage must be read for a compaction to save requests' dollars."""
        saved = self.read().dollars - self.read_compacted().dollars
        return self.compact().dollars / saved if saved > 0 else math.inf


def line(shuffle: Shuffle) -> str:
    """One row of the table."""
    one = shuffle
    extent = one.data_bytes / one.extents
    before, after, compact = one.read(), one.read_compacted(), one.compact()
    found = [
        one.seconds(one.write(), one.data_bytes),
        one.seconds(one.seal(), one.index_bytes),
        one.seconds(before, one.data_bytes),
        one.seconds(compact, 2 * one.data_bytes),
        one.seconds(after, one.data_bytes),
    ]
    times = [f"{seconds:>7,.0f}{bound}" for seconds, bound in found]
    index = one.index_bytes / 1e9
    fits = "" if one.producers * one.segments <= MAX_EXTENTS else " (!)"
    even = one.reads_to_break_even
    return " ".join(
        [
            f"{one.data_bytes / TB:>6,.0f} {one.producers:>7,} {one.partitions:>7,}",
            f"{extent / 1e3:>9,.1f}",
            f"{one.write().total:>11,} {one.write().dollars:>9,.2f} {times[0]}",
            f"{one.seal().total:>8,} {times[1]}",
            f"{before.total:>15,} {before.dollars:>9,.2f} {times[2]}",
            f"{compact.total:>15,} {compact.dollars:>9,.2f} {times[3]}",
            f"{after.total:>13,} {after.dollars:>9,.2f} {times[4]}",
            f"{even:>6.1f}" if even < 1000 else f"{'never':>6}",
            f"{index:>7.2f}{fits}",
        ]
    )


def table(shuffles: list[Shuffle]) -> str:
    first = shuffles[0]
    head = (
        f"{'TB':>6} {'M':>7} {'R':>7} {'extent kB':>9} {'write req':>11} {'$':>9} {'s':>8} "
        f"{'seal req':>8} {'s':>8} "
        f"{'read req':>15} {'$':>9} {'s':>8} {'compact req':>15} {'$':>9} {'s':>8} "
        f"{'read after':>13} {'$':>9} {'s':>8} {'even':>6} {'index GB':>7}"
    )
    notes = (
        f"{first.cores:,} cores, {first.requests_at_once} requests each at once, "
        f"{1000 * first.latency_seconds:.0f} ms a request, "
        f"{first.core_bytes_per_second / 1e6:.0f} MB/s a core; prefixes: {first.prefixes}; "
        f"segments of {first.segment_bytes >> 20} MiB; "
        f"${1000 * DOLLARS_PER_PUT:.4f} per 1,000 PUT, ${1000 * DOLLARS_PER_GET:.4f} a 1,000 GET.\n"
        "even: reads after which a compaction has paid for itself in requests; what it moves is "
        f"stored twice, at ${1000 * DOLLARS_PER_GB_DAY:.2f} per TB and day.\n"
        "Seconds are bound by w: waiting, r: the rate of requests per prefix, b: bandwidth.\n"
        f"(!): a partition has over {MAX_EXTENTS:,} extents: use larger segments."
    )
    return "\n".join([head, *map(line, shuffles), "", notes])


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tb", type=float, nargs="*", default=[1, 10, 100, 1000])
    parser.add_argument("--producers", type=int, nargs="*", default=[1000, 10_000, 50_000])
    parser.add_argument("--partitions", type=int, nargs="*", default=[1000, 10_000, 50_000])
    parser.add_argument("--segment-mib", type=int, default=64, help="a producer's memory")
    parser.add_argument("--cores", type=int, default=1000)
    parser.add_argument("--prefixes", type=int, default=1, help="that the store serves apart")
    options = parser.parse_args()
    shuffles = [
        Shuffle(
            m,
            r,
            int(tb * TB),
            options.segment_mib << 20,
            cores=options.cores,
            prefixes=options.prefixes,
        )
        for tb in options.tb
        for m in options.producers
        for r in options.partitions
    ]
    sys.stdout.write(table(shuffles) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
