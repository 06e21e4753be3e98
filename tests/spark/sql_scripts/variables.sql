-- Session variables, cached tables and views between the statements.
DECLARE OR REPLACE VARIABLE last_day DATE DEFAULT DATE '2026-02-01';
SET VAR last_day = (SELECT max(day) FROM orders WHERE status = 'shipped');
CACHE TABLE shipped AS SELECT customer_id, day, amount FROM orders WHERE status = 'shipped';
CREATE OR REPLACE TEMPORARY VIEW recent AS
SELECT customer_id, sum(amount) AS amount FROM shipped WHERE day > DATE '2026-01-15' GROUP BY customer_id;

CREATE TABLE IF NOT EXISTS recent_by_city (city STRING, until DATE, customers BIGINT, amount DECIMAL(32, 2)) USING ${format};

INSERT OVERWRITE recent_by_city
SELECT c.city, last_day, count(*), sum(r.amount)
FROM recent r JOIN customers c ON c.id = r.customer_id GROUP BY c.city;

SET VAR last_day = last_day - INTERVAL 20 DAYS;
CREATE TABLE IF NOT EXISTS recent_in_all (city STRING, until DATE, customers BIGINT, amount DECIMAL(32, 2)) USING ${format};
INSERT OVERWRITE recent_in_all
SELECT 'all', last_day, count(DISTINCT customer_id), sum(amount) FROM shipped WHERE day <= last_day;
UNCACHE TABLE shipped;
