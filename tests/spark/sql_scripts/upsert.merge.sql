-- Totals that are kept up to date: first half of the orders, then the rest by MERGE.
CREATE OR REPLACE TABLE totals USING ${format} AS
SELECT customer_id, count(*) AS orders, sum(amount) AS amount FROM orders WHERE day < DATE '2026-03-01' GROUP BY customer_id;

MERGE INTO totals t USING (
  SELECT customer_id, count(*) AS orders, CAST(sum(amount) AS DECIMAL(20, 2)) AS amount
  FROM orders WHERE day >= DATE '2026-03-01' GROUP BY customer_id
) n ON t.customer_id = n.customer_id
WHEN MATCHED AND n.orders > 100 THEN DELETE
WHEN MATCHED THEN UPDATE SET orders = t.orders + n.orders, amount = t.amount + n.amount
WHEN NOT MATCHED THEN INSERT (customer_id, orders, amount) VALUES (n.customer_id, n.orders, n.amount);

CREATE OR REPLACE TABLE shares USING ${format} AS
SELECT c.city, sum(t.orders) AS orders, sum(t.amount) AS amount FROM totals t JOIN customers c ON c.id = t.customer_id GROUP BY c.city;
