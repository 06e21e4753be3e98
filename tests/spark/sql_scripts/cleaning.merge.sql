-- Rows are deleted and updated in place, by what other tables say.
CREATE OR REPLACE TABLE clean_orders USING ${format} AS SELECT * FROM orders;

MERGE INTO clean_orders o USING (
  SELECT customer_id FROM changes GROUP BY customer_id HAVING count(*) > 6
) n ON o.customer_id = n.customer_id
WHEN MATCHED THEN DELETE;

MERGE INTO clean_orders o USING (
  SELECT order_id FROM payments GROUP BY order_id HAVING sum(cents) > 5000
) n ON o.id = n.order_id
WHEN MATCHED AND o.status <> 'returned' THEN UPDATE SET status = 'paid';

DELETE FROM clean_orders WHERE status = 'placed' AND day < DATE '2026-01-10';
UPDATE clean_orders SET status = 'late' WHERE status = 'placed' AND day < DATE '2026-02-01';

CREATE OR REPLACE TABLE statuses USING ${format} AS
SELECT status, count(*) AS orders, sum(amount) AS amount FROM clean_orders GROUP BY status;
