-- A table by day: all days at first, then one day again, then the days that a query names.
CREATE TABLE IF NOT EXISTS by_day (customers BIGINT, orders BIGINT, amount DECIMAL(32, 2), day DATE)
USING ${format} PARTITIONED BY (day);

SET spark.sql.sources.partitionOverwriteMode = static;
INSERT OVERWRITE by_day
SELECT count(DISTINCT customer_id), count(*), sum(amount), day FROM orders GROUP BY day;

INSERT OVERWRITE by_day PARTITION (day = DATE '2026-01-03')
SELECT count(DISTINCT customer_id), count(*), -sum(amount) FROM orders WHERE day = DATE '2026-01-03';

SET spark.sql.sources.partitionOverwriteMode = dynamic;
INSERT OVERWRITE by_day
SELECT 0, count(*), sum(amount), day FROM orders WHERE status = 'returned' AND day > DATE '2026-03-01' GROUP BY day;

SELECT count(*), sum(amount) FROM by_day;
