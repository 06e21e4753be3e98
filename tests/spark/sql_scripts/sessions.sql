-- Clicks become sessions: a pause of more than 30 minutes ends one.
CREATE TABLE IF NOT EXISTS sessions (
  user_id BIGINT, number BIGINT, began TIMESTAMP, ended TIMESTAMP, clicks BIGINT, pages BIGINT
) USING ${format};

INSERT OVERWRITE TABLE sessions
SELECT user_id, number, min(at), max(at), count(*), count(DISTINCT page)
FROM (
  SELECT user_id, at, page,
    sum(starts) OVER (PARTITION BY user_id ORDER BY at, id) AS number
  FROM (
    SELECT id, user_id, at, page,
      CASE WHEN at - lag(at) OVER (PARTITION BY user_id ORDER BY at, id) <= INTERVAL 30 MINUTES
        THEN 0 ELSE 1 END AS starts
    FROM events
  )
)
GROUP BY user_id, number;

CREATE TABLE IF NOT EXISTS session_lengths (clicks BIGINT, sessions BIGINT, users BIGINT) USING ${format};

INSERT OVERWRITE TABLE session_lengths
SELECT clicks, count(*), count(DISTINCT user_id) FROM sessions GROUP BY clicks HAVING count(*) > 1;
