-- A dimension that keeps its history: old versions end where new ones begin.
CREATE OR REPLACE TABLE customer_history USING ${format} AS
SELECT id AS customer_id, city, since AS valid_from, CAST(NULL AS DATE) AS valid_to FROM customers;

MERGE INTO customer_history h USING (
  SELECT customer_id, max_by(city, struct(changed, id)) AS city, max(changed) AS changed
  FROM changes WHERE changed < DATE '2026-04-01' GROUP BY customer_id
) n ON h.customer_id = n.customer_id AND h.valid_to IS NULL
WHEN MATCHED AND h.city <> n.city THEN UPDATE SET valid_to = n.changed;

INSERT INTO customer_history
SELECT n.customer_id, n.city, n.changed, NULL FROM (
  SELECT customer_id, max_by(city, struct(changed, id)) AS city, max(changed) AS changed
  FROM changes WHERE changed < DATE '2026-04-01' GROUP BY customer_id
) n JOIN (SELECT customer_id, max(valid_to) AS ended FROM customer_history GROUP BY customer_id) h
ON h.customer_id = n.customer_id AND h.ended = n.changed;

CREATE OR REPLACE TABLE versions USING ${format} AS
SELECT customer_id, count(*) AS versions, count(valid_to) AS ended FROM customer_history GROUP BY customer_id;
