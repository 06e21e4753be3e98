"""Marks for tests of what came with a version of PySpark, decided by what is there."""

import pytest
from pyspark.sql import DataFrame

ARROW_TABLES = hasattr(DataFrame, "toArrow")
"""From 4.0 on; so did `applyInArrow`, `createDataFrame` of an Arrow table, and `struct()`."""
SINCE_4 = pytest.mark.skipif(not ARROW_TABLES, reason="came with PySpark 4.0")
