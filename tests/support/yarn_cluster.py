"""A real YARN beside a real HDFS, in one JVM: Hadoop's own managers; containers are processes."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fetched_jars import fetched_for_yarn
from hdfs_cluster import HdfsCluster
from plain_jvm import plain_jvm

ATTEMPTS = 3
_SETTINGS = {
    "yarn.resourcemanager.am.max-attempts": str(ATTEMPTS),
    "yarn.scheduler.capacity.root.queues": "default",
    "yarn.scheduler.capacity.root.default.capacity": "100",
    "yarn.scheduler.capacity.maximum-am-resource-percent": "0.8",
    "yarn.scheduler.minimum-allocation-mb": "256",
    "yarn.nodemanager.resource.memory-mb": "6000",
    "yarn.nodemanager.vmem-check-enabled": "false",
    "yarn.nodemanager.pmem-check-enabled": "false",
    "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "99.9",
    "yarn.nodemanager.delete.debug-delay-sec": "600",
}
"""One queue; what a container may use is not watched; logs of ended containers stay."""


class YarnCluster:
    """One resource manager, one node manager, and the HDFS that is their default file system."""

    def __init__(self, gateway: Any, folder: Path) -> None:
        hadoop = gateway.jvm.org.apache.hadoop
        self.hdfs = HdfsCluster(gateway, folder / "hdfs", 1)
        self.settings = folder / "hadoop-settings"
        """Folder for HADOOP_CONF_DIR."""
        self.settings.mkdir()
        self._logs = folder / "yarn"
        given = hadoop.yarn.conf.YarnConfiguration()
        for name, value in {**_SETTINGS, "fs.defaultFS": self.hdfs.url("")}.items():
            given.set(name, value)
        gateway.jvm.java.lang.System.setProperty("test.build.data", str(self._logs))
        self._cluster = hadoop.yarn.server.MiniYARNCluster("tests", 1, 1, 1)
        self._cluster.init(given)
        self._cluster.start()
        for name in ("core-site.xml", "yarn-site.xml"):
            stream = gateway.jvm.java.io.FileOutputStream(str(self.settings / name))
            self._cluster.getConfig().writeXml(stream)
            stream.close()

    def logs(self, name: str = "stdout") -> list[str]:
        """Return what each container that runs or ran has written, in their order."""
        found = self._logs.glob(f"*/*/*-logDir-*/application_*/container_*/{name}")
        return [path.read_text(errors="replace") for path in sorted(found)]

    def stop(self) -> None:
        self._cluster.stop()
        self.hdfs.stop()


@contextmanager
def yarn_cluster(folder: Path) -> Iterator[YarnCluster]:
    """Run a cluster that ends with the block."""
    with plain_jvm(heap="1g", more=fetched_for_yarn()) as gateway:
        cluster = YarnCluster(gateway, folder)
        try:
            yield cluster
        finally:
            cluster.stop()
