-- Month by month is appended; a month that is there already is not appended again.
CREATE TABLE IF NOT EXISTS months (month INT, city STRING, orders BIGINT, amount DECIMAL(32, 2)) USING ${format};

INSERT INTO months
SELECT month(o.day), c.city, count(*), sum(o.amount) FROM orders o JOIN customers c ON c.id = o.customer_id
WHERE month(o.day) = 1 AND NOT EXISTS (SELECT 1 FROM months WHERE month = 1) GROUP BY month(o.day), c.city;

INSERT INTO months
SELECT month(o.day), c.city, count(*), sum(o.amount) FROM orders o JOIN customers c ON c.id = o.customer_id
WHERE month(o.day) > (SELECT max(month) FROM months) AND month(o.day) < 4 GROUP BY month(o.day), c.city;

INSERT INTO months
SELECT month(o.day), c.city, count(*), sum(o.amount) FROM orders o JOIN customers c ON c.id = o.customer_id
WHERE month(o.day) > (SELECT max(month) FROM months) GROUP BY month(o.day), c.city;
