-- Customers, orders and payments of a shop: from raw rows to two tables that people read.
CREATE OR REPLACE TEMPORARY VIEW staged_payments AS
SELECT id AS payment_id, order_id, method, CAST(cents AS DECIMAL(12, 2)) / 100 AS amount FROM payments;

CREATE TABLE IF NOT EXISTS order_totals (
  order_id BIGINT, customer_id BIGINT, day DATE, status STRING,
  card DECIMAL(22, 2), cash DECIMAL(22, 2), coupon DECIMAL(22, 2), total DECIMAL(22, 2)
) USING ${format};

INSERT OVERWRITE order_totals
WITH paid AS (
  SELECT order_id,
    sum(CASE WHEN method = 'card' THEN amount ELSE 0 END) AS card,
    sum(CASE WHEN method = 'cash' THEN amount ELSE 0 END) AS cash,
    sum(CASE WHEN method = 'coupon' THEN amount ELSE 0 END) AS coupon,
    sum(amount) AS total
  FROM staged_payments GROUP BY order_id
)
SELECT o.id, o.customer_id, o.day, o.status, p.card, p.cash, p.coupon, p.total
FROM orders o LEFT JOIN paid p ON p.order_id = o.id;

CREATE TABLE IF NOT EXISTS customer_values (
  customer_id BIGINT, name STRING, first_order DATE, newest_order DATE, orders BIGINT, lifetime DECIMAL(32, 2)
) USING ${format};

INSERT OVERWRITE customer_values
WITH by_customer AS (
  SELECT customer_id, min(day) AS first_order, max(day) AS newest_order, count(*) AS orders, sum(total) AS lifetime
  FROM order_totals GROUP BY customer_id
)
SELECT c.id, c.name, b.first_order, b.newest_order, coalesce(b.orders, 0), b.lifetime
FROM customers c LEFT JOIN by_customer b ON b.customer_id = c.id;

SELECT count(*), sum(lifetime) FROM customer_values;
