-- The newest version of each row, and what was dropped.
CREATE TABLE IF NOT EXISTS newest_changes (customer_id BIGINT, city STRING, changed DATE, id BIGINT) USING ${format};

INSERT OVERWRITE newest_changes
SELECT customer_id, city, changed, id FROM (
  SELECT *, row_number() OVER (PARTITION BY customer_id ORDER BY changed DESC, id DESC) AS place FROM changes
) WHERE place = 1;

CREATE TABLE IF NOT EXISTS dropped_changes (customer_id BIGINT, dropped BIGINT) USING ${format};

INSERT OVERWRITE dropped_changes
SELECT customer_id, count(*) FROM (
  SELECT customer_id, id FROM changes EXCEPT ALL SELECT customer_id, id FROM newest_changes
) GROUP BY customer_id;

CREATE TABLE IF NOT EXISTS cities (city STRING, customers BIGINT) USING ${format};

INSERT OVERWRITE cities
SELECT city, count(*) FROM (SELECT DISTINCT customer_id, city FROM newest_changes) GROUP BY city;
