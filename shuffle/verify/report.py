"""The results of a verification, as values. Nothing here reads storage."""

from dataclasses import asdict, dataclass

from durable_shuffle.serialization.errors import DurableShuffleError, ErrorKind
from durable_shuffle.shuffle.base.words import StageStatus, growing_text
from durable_shuffle.shuffle.log.layout import ConsumerPath, StagePath


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference between what is stored and what the logs say."""

    key: str
    """The object, relative to the storage's root."""
    kind: ErrorKind
    """`not_found` and `corrupt_data` mean damage. `incompatible` needs another version of this
    library. Any other kind means that the object could not be checked."""
    expected: str
    found: str
    start: int | None = None
    """Offset of the first byte that the finding is about; None means the whole object."""
    length: int | None = None
    """Number of bytes from `start`."""

    def __str__(self) -> str:
        where = ""
        if self.start is not None and self.length is not None:
            where = f" bytes=[{self.start}, {self.start + self.length})"
        return f"{self.kind.value}: {self.key}{where}: expected {self.expected}, found {self.found}"


def damage(
    key: str, expected: str, found: str, start: int | None = None, length: int | None = None
) -> Finding:
    """Return the finding for bytes or values that are not what a record states."""
    return Finding(key, ErrorKind.CORRUPT_DATA, expected, found, start, length)


def finding_of(
    error: DurableShuffleError,
    key: str,
    expected: str,
    *,
    start: int | None = None,
    length: int | None = None,
) -> Finding:
    """Return the finding for an error of a read or decode."""
    return Finding(key, error.kind, expected, str(error), start, length)


@dataclass(frozen=True, slots=True)
class StageVerdict:
    """The result of checking one stage."""

    path: StagePath
    status: StageStatus
    """Only the logs of a released stage are checked, because its data may be gone."""
    producers: int | None
    """M; None if neither SEAL nor DESCRIBE could be read."""
    committed: int
    """Producers whose COMMIT counts and was read. In a stage that is not sealed, a producer without
    a COMMIT is no finding."""
    rows: int
    """Rows of the frames that passed every check."""
    objects: int
    """Objects read whole."""
    checked_bytes: int
    """Bytes of those objects."""
    findings: tuple[Finding, ...]
    ended: int | None = None
    """Log producers that will never append again; None for other stages and released ones."""

    @property
    def summary(self) -> str:
        """One sentence for people."""
        if self.status is StageStatus.RELEASED:
            return "released: its logs were checked, its data may be gone"
        if self.ended is not None:
            status = growing_text(self.ended, self.producers or 0)
            return f"{status}: {self.rows} rows, {self.checked_bytes} bytes checked"
        of = f" of {self.producers}" if self.producers is not None else ""
        tasks = f"{self.committed}{of} map tasks"
        if self.status is StageStatus.PARTIAL:
            return f"{self.status}: {tasks} are stored, only they were checked"
        return f"{self.status}: {tasks}, {self.rows} rows"


@dataclass(frozen=True, slots=True)
class ConsumerVerdict:
    """The result of checking one task of one consumer."""

    path: ConsumerPath
    records: int
    """Rows that were acknowledged, as of the newest readable state of the log."""
    finished: bool
    outputs: int
    """Outputs that this state names."""
    objects: int
    """Objects read whole."""
    checked_bytes: int
    """Bytes of those objects."""
    findings: tuple[Finding, ...]
    reads: tuple[tuple[str, int], ...] = ()
    """For each stage that it reads: its folder, and the slot of the SEAL or REPLACE in the stage
    log by which it reads."""

    @property
    def summary(self) -> str:
        """One sentence for people."""
        status = "finished" if self.finished else "not finished"
        return f"{status}: {self.records} records, {self.outputs} outputs"


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What `verify_stage` or `verify_job` found."""

    job: str
    stages: tuple[StageVerdict, ...]
    log_findings: tuple[Finding, ...]
    """Findings of the job log and of a pipeline's control logs."""
    log_objects: int
    log_bytes: int
    consumers: tuple[ConsumerVerdict, ...] = ()
    """Only `verify_job` checks consumers."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All findings: the job log's, then each stage's, then each consumer's."""
        return (*self.log_findings, *(f for part in self._parts for f in part.findings))

    @property
    def ok(self) -> bool:
        """True if everything was checked and nothing was found."""
        return not self.findings

    @property
    def objects(self) -> int:
        """Objects read whole."""
        return self.log_objects + sum(part.objects for part in self._parts)

    @property
    def checked_bytes(self) -> int:
        """Bytes of those objects."""
        return self.log_bytes + sum(part.checked_bytes for part in self._parts)

    @property
    def _parts(self) -> tuple[StageVerdict | ConsumerVerdict, ...]:
        return (*self.stages, *self.consumers)

    def to_dict(self) -> dict[str, object]:
        """Return plain values, for JSON."""
        counts = ("summary", "objects", "checked_bytes")
        names = ("name", "fingerprint", "incarnation")
        of_stage = ("status", "producers", "committed", "rows", *counts)
        of_consumer = ("records", "finished", "outputs", *counts)
        return {
            "job": self.job,
            "ok": self.ok,
            "objects": self.objects,
            "checked_bytes": self.checked_bytes,
            "stages": [
                _values(stage.path, names) | _values(stage, of_stage) for stage in self.stages
            ],
            "consumers": [
                _values(task.path, ("consumer", "task")) | _values(task, of_consumer)
                for task in self.consumers
            ],
            "findings": [asdict(finding) for finding in self.findings],
        }


def _values(part: object, names: tuple[str, ...]) -> dict[str, object]:
    """Return these attributes, and the number of findings if the part has findings."""
    values = {name: getattr(part, name) for name in names}
    if isinstance(part, StageVerdict | ConsumerVerdict):
        values["findings"] = len(part.findings)
    return values
