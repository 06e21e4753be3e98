-- A tree that is walked level by level, each level a table of its own.
CREATE TABLE IF NOT EXISTS parents (child BIGINT, parent BIGINT) USING ${format};
INSERT OVERWRITE parents SELECT DISTINCT id, id DIV 2 FROM customers WHERE id > 1;

CREATE TABLE IF NOT EXISTS level_1 (child BIGINT, ancestor BIGINT) USING ${format};
INSERT OVERWRITE level_1 SELECT a.child, b.parent FROM parents a JOIN parents b ON a.parent = b.child;

CREATE TABLE IF NOT EXISTS level_2 (child BIGINT, ancestor BIGINT) USING ${format};
INSERT OVERWRITE level_2 SELECT a.child, b.parent FROM level_1 a JOIN parents b ON a.ancestor = b.child;

CREATE TABLE IF NOT EXISTS spent (ancestor BIGINT, level INT, orders BIGINT, amount DECIMAL(32, 2)) USING ${format};
INSERT OVERWRITE spent
SELECT t.ancestor, t.level, count(*), sum(o.amount) FROM (
  SELECT child, parent AS ancestor, 0 AS level FROM parents
  UNION ALL SELECT child, ancestor, 1 FROM level_1
  UNION ALL SELECT child, ancestor, 2 FROM level_2
) t JOIN orders o ON o.customer_id = t.child
GROUP BY t.ancestor, t.level;
