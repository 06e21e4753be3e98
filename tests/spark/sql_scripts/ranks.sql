-- The three best articles of each city; customers who never bought them.
CREATE TABLE IF NOT EXISTS best (city STRING, sku STRING, sold BIGINT, place INT) USING ${format};

INSERT OVERWRITE best
SELECT * FROM (
  SELECT city, sku, sold, rank() OVER (PARTITION BY city ORDER BY sold DESC, sku) AS place
  FROM (
    SELECT c.city, i.sku, sum(i.quantity) AS sold
    FROM items i JOIN orders o ON o.id = i.order_id JOIN customers c ON c.id = o.customer_id
    GROUP BY c.city, i.sku
  )
) WHERE place <= 3;

CREATE TABLE IF NOT EXISTS missed (customer_id BIGINT, city STRING) USING ${format};

INSERT OVERWRITE missed
SELECT c.id, c.city FROM customers c
WHERE NOT EXISTS (
  SELECT 1 FROM orders o JOIN items i ON i.order_id = o.id JOIN best b ON b.sku = i.sku
  WHERE o.customer_id = c.id AND b.city = c.city
);

SELECT city, count(*) FROM missed GROUP BY city
HAVING count(*) > (SELECT avg(n) / 2 FROM (SELECT count(*) AS n FROM missed GROUP BY city)) ORDER BY city;
