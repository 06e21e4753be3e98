-- Steps that users take, with sums over several groupings at once.
CREATE TABLE IF NOT EXISTS funnel (page STRING, hour INT, grouping BIGINT, users BIGINT, clicks BIGINT) USING ${format};

INSERT OVERWRITE funnel
SELECT page, hour(at), grouping_id(), count(DISTINCT user_id), count(*)
FROM events GROUP BY CUBE (page, hour(at));

CREATE TABLE IF NOT EXISTS steps (user_id BIGINT, seen BOOLEAN, tried BOOLEAN, bought BOOLEAN) USING ${format};

INSERT OVERWRITE steps
SELECT user_id, bool_or(page = 'home'), bool_or(page = 'cart'), bool_or(page = 'pay')
FROM events GROUP BY user_id;

CREATE TABLE IF NOT EXISTS step_counts (step STRING, users BIGINT) USING ${format};

INSERT OVERWRITE step_counts
SELECT step, count(*) FROM (
  SELECT stack(3, 'seen', seen, 'tried', tried, 'bought', bought) AS (step, reached) FROM steps
) WHERE reached GROUP BY step;
