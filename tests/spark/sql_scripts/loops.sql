-- One SQL script with a loop: pairs of customers and their grandparents, level by level.
BEGIN
  CREATE TABLE IF NOT EXISTS levels (level INT, pairs BIGINT, farthest BIGINT) USING ${format};
  CREATE TABLE IF NOT EXISTS edges (child BIGINT, parent BIGINT) USING ${format};
  INSERT OVERWRITE edges SELECT DISTINCT id, id DIV 2 FROM customers WHERE id > 1;
  INSERT OVERWRITE levels SELECT 0, count(*), max(child) FROM edges;
  BEGIN
    DECLARE level INT DEFAULT 1;
    DECLARE found BIGINT DEFAULT 0;
    WHILE level <= 3 DO
      SET found = (
        SELECT count(*) FROM edges a JOIN edges b ON a.parent = b.child WHERE a.child % (level + 1) = 0
      );
      INSERT INTO levels
      SELECT level, found, max(o.customer_id) FROM orders o JOIN edges e ON e.child = o.customer_id
      WHERE o.customer_id % (level + 1) = 0;
      SET level = level + 1;
    END WHILE;
  END;
END
