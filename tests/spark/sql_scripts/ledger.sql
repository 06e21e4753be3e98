-- Money in and out, a balance after each booking, and days that do not add up.
CREATE TABLE IF NOT EXISTS bookings (account BIGINT, day DATE, id BIGINT, kind STRING, cents BIGINT, balance BIGINT) USING ${format};

INSERT OVERWRITE bookings
WITH both AS (
  SELECT o.customer_id AS account, o.day, o.id, 'order' AS kind, -CAST(o.amount * 100 AS BIGINT) AS cents FROM orders o
  UNION ALL
  SELECT o.customer_id, o.day, p.id, 'payment', p.cents FROM payments p JOIN orders o ON o.id = p.order_id
)
SELECT account, day, id, kind, cents,
  sum(cents) OVER (PARTITION BY account ORDER BY day, kind, id ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
FROM both;

CREATE TABLE IF NOT EXISTS in_debt (account BIGINT, lowest BIGINT, days BIGINT) USING ${format};

INSERT OVERWRITE in_debt
SELECT account, min(balance), count(DISTINCT day) FROM bookings b
WHERE balance < 0 AND EXISTS (SELECT 1 FROM payments p JOIN orders o ON o.id = p.order_id WHERE o.customer_id = b.account)
GROUP BY account;
