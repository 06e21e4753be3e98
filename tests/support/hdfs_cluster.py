"""A real HDFS in one JVM: Hadoop's own namenodes and datanode."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fetched_jars import fetched
from plain_jvm import plain_jvm

_SETTINGS = {
    "dfs.permissions.enabled": "false",
    "dfs.ha.tail-edits.period": "1",
    "dfs.namenode.fs-limits.min-block-size": "0",
    "dfs.namenode.edits.noeditlogchannelflush": "true",
}


class HdfsCluster:
    """The running cluster."""

    def __init__(self, gateway: Any, folder: Path, namenodes: int) -> None:
        hadoop = gateway.jvm.org.apache.hadoop
        self._no_arguments = gateway.new_array(gateway.jvm.String, 0)
        settings = hadoop.conf.Configuration()
        settings.set("hdfs.minidfs.basedir", str(folder))
        for name, value in _SETTINGS.items():
            settings.set(name, value)
        builder = hadoop.hdfs.MiniDFSCluster.Builder(settings).numDataNodes(1)
        if namenodes > 1:
            builder = builder.nnTopology(hadoop.hdfs.MiniDFSNNTopology.simpleHATopology())
        self._cluster = builder.build()
        self._namenodes = namenodes
        self._active = 0
        if namenodes > 1:
            self._cluster.transitionToActive(0)
        self._cluster.waitActive()

    def port(self, namenode: int = 0) -> int:
        """Return the port of a namenode's RPC server on 127.0.0.1."""
        return int(self._cluster.getNameNode(namenode).getNameNodeAddress().getPort())

    def url(self, path: str) -> str:
        return f"hdfs://127.0.0.1:{self.port()}{path}"

    def nameservice(self) -> dict[str, str]:
        """Return the settings of a client that knows both namenodes as `hdfs://ha`."""
        return {
            "dfs.nameservices": "ha",
            "dfs.ha.namenodes.ha": "nn0,nn1",
            "dfs.namenode.rpc-address.ha.nn0": f"127.0.0.1:{self.port(0)}",
            "dfs.namenode.rpc-address.ha.nn1": f"127.0.0.1:{self.port(1)}",
        }

    def failover(self) -> None:
        """Hand over: the active namenode becomes standby, the other one active."""
        self._cluster.transitionToStandby(self._active)
        self._active = 1 - self._active
        self._cluster.transitionToActive(self._active)

    def crash(self) -> None:
        """End the active namenode without a farewell; the other one takes over."""
        self._cluster.shutdownNameNode(self._active)
        self._active = 1 - self._active
        self._cluster.transitionToActive(self._active)

    def revive(self) -> None:
        """Start the namenode that crashed, as standby, on its old port."""
        self._cluster.restartNameNode(1 - self._active, False, self._no_arguments)

    def stop(self) -> None:
        self._cluster.shutdown()


@contextmanager
def hdfs_cluster(folder: Path, namenodes: int = 1) -> Iterator[HdfsCluster]:
    """Run a cluster that ends with the block."""
    with plain_jvm(heap="700m", more=[fetched("HADOOP")]) as gateway:
        cluster = HdfsCluster(gateway, folder, namenodes)
        try:
            yield cluster
        finally:
            cluster.stop()
