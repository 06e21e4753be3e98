-- A warehouse load: dimensions with keys of their own, then facts that name them.
CREATE TABLE IF NOT EXISTS dim_date (date_key INT, day DATE, weekday INT, month INT) USING ${format};
INSERT OVERWRITE dim_date
SELECT CAST(date_format(day, 'yyyyMMdd') AS INT), day, dayofweek(day), month(day)
FROM (SELECT explode(sequence(first, newest)) AS day FROM (SELECT min(day) AS first, max(day) AS newest FROM orders));

CREATE TABLE IF NOT EXISTS dim_customer (customer_key BIGINT, customer_id BIGINT, name STRING, city STRING) USING ${format};
INSERT OVERWRITE dim_customer
SELECT row_number() OVER (ORDER BY c.id), c.id, c.name, coalesce(n.city, c.city)
FROM customers c LEFT JOIN (
  SELECT customer_id, max_by(city, struct(changed, id)) AS city FROM changes GROUP BY customer_id
) n ON n.customer_id = c.id;

CREATE TABLE IF NOT EXISTS fact_sales (date_key INT, customer_key BIGINT, sku STRING, quantity BIGINT, revenue DECIMAL(32, 2)) USING ${format};
INSERT OVERWRITE fact_sales
SELECT d.date_key, k.customer_key, i.sku, sum(i.quantity), sum(i.quantity * i.price)
FROM items i JOIN orders o ON o.id = i.order_id
JOIN dim_date d ON d.day = o.day JOIN dim_customer k ON k.customer_id = o.customer_id
GROUP BY d.date_key, k.customer_key, i.sku;

CREATE TABLE IF NOT EXISTS audit (name STRING, rows BIGINT) USING ${format};
INSERT OVERWRITE audit
SELECT 'dim_date', count(*) FROM dim_date UNION ALL SELECT 'dim_customer', count(*) FROM dim_customer
UNION ALL SELECT 'fact_sales', count(*) FROM fact_sales;
