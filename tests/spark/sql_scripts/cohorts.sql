-- How many customers of a month come back in the months after it.
CREATE TABLE IF NOT EXISTS cohorts (cohort DATE, months INT, customers BIGINT, share DECIMAL(6, 4)) USING ${format};

INSERT OVERWRITE cohorts
WITH first_months AS (
  SELECT customer_id, trunc(min(day), 'MM') AS cohort FROM orders GROUP BY customer_id
),
active AS (
  SELECT DISTINCT customer_id, trunc(day, 'MM') AS month FROM orders
),
sizes AS (SELECT cohort, count(*) AS customers FROM first_months GROUP BY cohort)
SELECT f.cohort, CAST(months_between(a.month, f.cohort) AS INT) AS months, count(*),
  CAST(count(*) / max(s.customers) AS DECIMAL(6, 4))
FROM active a JOIN first_months f USING (customer_id) JOIN sizes s ON s.cohort = f.cohort
GROUP BY f.cohort, CAST(months_between(a.month, f.cohort) AS INT);

SELECT * FROM cohorts PIVOT (sum(customers) FOR months IN (0, 1, 2)) ORDER BY cohort, share;
